"""Traces of other tools become captures: one module a source format. docs/importers.md says what becomes of what."""
