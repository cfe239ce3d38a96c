"""Raises while it is imported."""

raise RuntimeError("this plugin was never finished")
