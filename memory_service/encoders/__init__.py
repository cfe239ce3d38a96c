"""Encoders make vectors of texts: a small interface, one that is the default, and one that always works."""
