"""Verbs of hardware metrics."""
