"""What a HomeAgent plugin, and every process of HomeAgent itself, is written against."""

__version__ = "0.1.0"
