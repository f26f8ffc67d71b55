"""The options that several benchmarks have, so that each means the same everywhere."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

#: As the value of an option: it must be given.
REQUIRED = object()


def words(text: str) -> list[str]:
    """The words of a list with commas between."""
    return text.split(",")


_OPTIONS: dict[str, dict[str, Any]] = {
    "out": {"type": Path, "help": "the file for the result (JSON)"},
    "rounds": {"type": int, "help": "repetitions of each measurement (%(default)s)"},
    "events": {"type": int, "help": "rows of the capture (%(default)s)"},
    "capture": {"type": Path, "help": "the capture to tile (the largest of tests/data)"},
    "launches": {"type": int, "help": "launches of a measurement (%(default)s)"},
    "only": {"type": words, "help": "beginnings of the names of what to run, with commas between"},
    "arch": {"help": "GPU architecture for nvcc (%(default)s: this machine's)"},
    "budget": {"type": float, "help": "seconds after which no round is begun (%(default)s)"},
}


def parser(description: str | None, **defaults: Any) -> argparse.ArgumentParser:
    """A parser that shows the docstring of a benchmark, and has these shared options with these defaults."""
    made = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in defaults.items():
        required = default is REQUIRED
        made.add_argument(f"--{name}", required=required, default=None if required else default, **_OPTIONS[name])
    return made
