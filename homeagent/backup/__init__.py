"""Backups of everything that HomeAgent keeps, and how they are put back."""
