"""Verbs of pages."""
