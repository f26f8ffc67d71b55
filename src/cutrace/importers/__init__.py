"""Importers of other tools' traces, one module a source format. docs/importers.md has the mapping of events."""
