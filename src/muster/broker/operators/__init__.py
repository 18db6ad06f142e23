"""Metrics and garbage collection."""
