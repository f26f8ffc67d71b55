"""Sessions under `cutrace record --last`: write the newest records to a file when a test fails."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

_DUMP = "dump="


def recorder() -> FlightRecorder | None:
    """The flight recorder if the recording of this process keeps only the newest rows, else None."""
    # The options are parsed here, because importing cutrace.collect in each session would cost more.
    options = os.environ.get("CUTRACE_OPTIONS", "").split("\n")
    paths = [
        option.removeprefix(_DUMP) for option in options if option.startswith(_DUMP)
    ]
    if paths:
        return FlightRecorder(Path(paths[-1]))
    return None


class FlightRecorder:
    """Writes ``run-failed/<path of the test>.bin`` for each failed test, where ``output`` is ``run.bin``."""

    def __init__(self, output: Path) -> None:
        self._folder = output.with_name(f"{output.stem}-failed")

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item) -> Iterator[None]:
        report: Any = yield
        if report.failed:
            report.sections.append(("cutrace", self._written(item)))
        return report  # type: ignore[no-any-return]

    def _written(self, item: pytest.Item) -> str:
        """Write a dump. Returns a sentence with its path, or with the reason why there is no dump."""
        from cutrace import CutraceError, dump
        from cutrace.golden import artifact_path

        place = artifact_path(self._folder, item.nodeid)
        path = place.with_name(f"{place.name}.bin")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            written = dump(path)
        except (CutraceError, OSError) as error:
            return f"the newest records could not be written: {error}"
        if written:
            return f"the newest records: {os.path.relpath(path)}"
        return "nothing had been recorded yet"
