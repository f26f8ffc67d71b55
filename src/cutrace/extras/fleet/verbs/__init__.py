"""Verbs of many traces."""
