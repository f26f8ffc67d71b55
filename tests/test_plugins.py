"""The search for formats. A broken package does not affect the others."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest

import cutrace
from cutrace import CutraceError, plugins
from cutrace.exporters.base import Exporter
from databases import NSYS
from support import small_capture
from support.packages import installed


class Theirs:
    """An importer of another package. It recognizes every file."""

    name = "theirs"
    description = "anything"

    def recognizes(self, source):
        return True

    def read(self, source, out):
        out.process(0, pid=77)


def broken(source):
    raise ZeroDivisionError("a broken importer")


def write(trace, path, request):
    path.write_text(f"{len(trace.kernels)} kernels")


def exporters() -> list[Exporter]:
    return [Exporter("count", "how many kernels", (".count", ".json"), write)]


@pytest.mark.parametrize(
    "source", ["import a_module_that_is_not_there", "def cutrace_importers(): 1 / 0\ncutrace_exporters = 3"]
)
def test_a_package_that_fails_breaks_no_format_of_cutrace(tmp_path, source):
    capture = small_capture(tmp_path / "a.bin")
    with installed(tmp_path / "packages", "failing", source), warnings.catch_warnings():
        warnings.simplefilter("error")  # no warning, because the package was not used
        for name in ("a.pftrace", "a.json", "a.sqlite", "kernels.csv"):
            cutrace.convert(capture, tmp_path / name)
        assert len(cutrace.load(NSYS).kernels) == 1
        assert len(cutrace.load(tmp_path / "a.json").kernels) == 2


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("import a_module_that_is_not_there", "ModuleNotFoundError: No module named 'a_module_that_is_not_there'"),
        ("def cutrace_importers(): 1 / 0\ndef cutrace_exporters(): 1 / 0", "ZeroDivisionError"),
        (
            "def cutrace_importers(): return [1]\ndef cutrace_exporters(): return [1]",
            r"TypeError: an object from cutrace_\w+\(\) has no name",
        ),
    ],
)
def test_a_package_that_fails_is_named_in_a_warning_and_skipped(tmp_path, source, reason):
    (tmp_path / "a.other").write_bytes(b"\x01\x02")
    with (
        installed(tmp_path / "packages", "failing", source),
        installed(tmp_path / "more", "working", cutrace_importers=lambda: [Theirs()], cutrace_exporters=exporters),
    ):
        with pytest.warns(RuntimeWarning, match=f"'failing'.*{reason}"):
            assert [p.pid for p in cutrace.load(tmp_path / "a.other").processes] == [77]
        with pytest.warns(RuntimeWarning, match=f"'failing'.*{reason}"):
            cutrace.convert(small_capture(tmp_path / "a.bin"), tmp_path / "a.count")
        assert (tmp_path / "a.count").read_text() == "2 kernels"


def test_an_importer_that_fails_to_look_at_a_file_is_skipped(tmp_path):
    theirs = Theirs()
    theirs.recognizes = broken
    (tmp_path / "a.other").write_bytes(b"\x01\x02")
    with (
        installed(tmp_path / "packages", "failing", cutrace_importers=lambda: [theirs, Theirs()]),
        pytest.warns(RuntimeWarning, match="'theirs' .* a broken importer"),
    ):
        assert [p.pid for p in cutrace.load(tmp_path / "a.other").processes] == [77]


def test_formats_of_cutrace_come_first_in_both_directions(tmp_path):
    functions = {"cutrace_importers": lambda: [Theirs()], "cutrace_exporters": exporters}
    with installed(tmp_path / "packages", "greedy", **functions):
        cutrace.convert(small_capture(tmp_path / "a.bin"), tmp_path / "a.json")
        assert (tmp_path / "a.json").read_text().startswith("{")
        assert len(cutrace.load(NSYS).kernels) == 1


def test_an_exporter_is_found_by_its_name_or_ending():
    assert plugins.exporter(Path("trace.txt"), "chrome").name == "chrome"
    assert plugins.exporter(Path("trace.txt"), "json").name == "chrome"
    assert plugins.exporter(Path("run.pftrace"), "sqlite").name == "sqlite"
    with pytest.raises(CutraceError, match=r"there is no format 'perfeto': did you mean perfetto\?"):
        plugins.exporter(Path("a"), "perfeto")
    with pytest.raises(
        CutraceError, match="it can be perfetto, parquet, csv, chrome, folded, speedscope, pprof, capture, sqlite"
    ):
        plugins.exporter(Path("a"), "zzz")


@pytest.mark.parametrize(
    ("name", "format"),
    [("a.pftrace.gz", "perfetto"), ("a.PFTRACE", "perfetto"), ("A.B.Json.GZ", "chrome"), ("a.db", "sqlite")],
)
def test_an_exporter_is_found_by_the_ending(name, format):
    assert plugins.exporter(Path(name)).name == format


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("a.pftrac", r"did you mean .pftrace"),
        ("a.sqlit", r"did you mean .sqlite"),
        ("a.b.parqet", r"did you mean .parquet\?"),
        (
            "a.xyz",
            "let its name end with one of .pftrace, .parquet, .csv, .json, .folded, .speedscope.json, .pb.gz, .bin, "
            ".sqlite",
        ),
        ("a", "let its name end with one of .pftrace"),
    ],
)
def test_an_ending_that_nothing_writes_gets_a_hint(tmp_path, name, hint):
    with pytest.raises(CutraceError, match=f"cannot tell the format of .*{name}: {hint}"):
        cutrace.convert(small_capture(tmp_path / "run.bin"), tmp_path / name)


def test_capitals_in_an_ending_compress_too(tmp_path):
    cutrace.convert(small_capture(tmp_path / "run.bin"), tmp_path / "A.JSON.GZ")
    assert (tmp_path / "A.JSON.GZ").read_bytes().startswith(b"\x1f\x8b")
    assert len(cutrace.load(tmp_path / "A.JSON.GZ").kernels) == 2
