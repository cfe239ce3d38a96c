"""Servers that stand in for the outside world in tests and benchmarks."""
