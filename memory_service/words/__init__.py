"""How text becomes words: the same for what is stored and for what is asked."""
