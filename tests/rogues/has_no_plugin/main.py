"""Defines no plugin."""
