"""Reports on traced tests: what a failure says, the terminal's footer, JSON, Markdown, JUnit and an HTML page.

All of them show a :class:`~cutrace.reports.model.Report`. Neither pytest nor a GPU is needed. See docs/reports.md.
"""
