"""The graph: facts as subject, relation and object, with where they come from and who may see them."""
