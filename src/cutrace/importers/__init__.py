"""Importers of other tools' traces, one module a source format. docs/internals/importers.md has the mapping."""
