"""Errors for users: one sentence that says what is wrong and what to do next."""


class CutraceError(Exception):
    """A problem that the user can act on. The command line prints it and exits with status 2."""


class BadCapture(CutraceError):
    """A file that is not a capture, or holds no usable block."""
