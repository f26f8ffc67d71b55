"""Features beside the core: each folder here can be deleted, and the rest works without it.

An extra has the functions that a package of others has (:mod:`cutrace.plugins`), in its ``__init__.py``.
"""
