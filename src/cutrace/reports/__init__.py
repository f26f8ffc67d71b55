"""Reports on traced tests: lines of failures, the terminal's footer, JSON, Markdown, JUnit and an HTML page.

All of them show a :class:`~cutrace.reports.model.SessionReport`. They need neither pytest nor a GPU. See
docs/internals/gate.md.
"""
