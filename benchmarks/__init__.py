"""Measurements that are too heavy for the test suite."""
