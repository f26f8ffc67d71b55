"""The options that several benchmarks share, so that each has the same meaning everywhere."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

#: The default of a required option.
REQUIRED = object()


def words(text: str) -> list[str]:
    """Split a list at its commas."""
    return text.split(",")


_OPTIONS: dict[str, dict[str, Any]] = {
    "out": {"type": Path, "help": "the file for the result (JSON)"},
    "rounds": {"type": int, "help": "repetitions of each measurement (%(default)s)"},
    "events": {"type": int, "help": "rows of the capture (%(default)s)"},
    "capture": {"type": Path, "help": "the capture to tile (the largest of tests/data)"},
    "launches": {"type": int, "help": "launches of a measurement (%(default)s)"},
    "only": {"type": words, "help": "what to run: first letters of names, separated by commas"},
    "arch": {"help": "GPU architecture for nvcc (%(default)s: this machine's)"},
    "budget": {"type": float, "help": "seconds after which no round is started (%(default)s)"},
}


def parser(description: str | None, **defaults: Any) -> argparse.ArgumentParser:
    """Make a parser that shows the docstring of a benchmark, and has these shared options with these defaults."""
    made = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in defaults.items():
        required = default is REQUIRED
        made.add_argument(f"--{name}", required=required, default=None if required else default, **_OPTIONS[name])
    return made
