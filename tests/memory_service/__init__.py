"""Tests of the memory service."""
