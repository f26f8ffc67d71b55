"""Fuzzing: see docs/fuzzing.md. ``python -m fuzz`` (from ``tests``) runs the targets that are written in Python."""
