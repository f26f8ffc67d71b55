"""Features outside the core. Each folder here can be deleted, and the rest works without it.

The ``__init__.py`` of an extra has the same functions as a plugin package (:mod:`cutrace.plugins`).
"""
