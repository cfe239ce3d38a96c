"""Meaning as vectors: kept up behind the events, searched in memory; recall works by words wherever they lack."""
