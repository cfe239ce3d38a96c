"""Turns: from an accepted input to its one outcome."""
