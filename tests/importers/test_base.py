"""Importers: the capture that they write, and the account of the events of the file."""

from __future__ import annotations

import gzip
import json

import numpy as np
import pytest
import zstandard

import cutrace
from cutrace import BadCapture
from cutrace.importers.base import HEAD, Import, SourceFile
from cutrace.loading import opened
from cutrace.runbin import TABLES
from support.packages import installed


class Lines:
    """Reads files with ``slices`` lines. A line has a name, a start and an end."""

    name = "lines"
    description = "lines of text"

    def recognizes(self, source: SourceFile) -> bool:
        return source.head.startswith(b"slices\n")

    def read(self, source: SourceFile, out: Import) -> None:
        rows = []
        writer = out.process(0, pid=7, name="writer of lines")
        with source.open() as file:
            for line in file.read().decode().splitlines()[1:]:
                name, *numbers = line.split()
                try:
                    start, end = map(int, numbers)
                except ValueError:
                    out.lost("line", 1, why="no two numbers")
                    continue
                if name.startswith("#"):
                    out.left("line", 1, end - start, why="a comment")
                    continue
                row = np.zeros(1, TABLES["host_slices"].dtype)
                row["start"], row["end"], row["name"] = start, end, writer.string(name)
                out.kept("line", 1, end - start)
                rows.append(row)
        if rows:
            writer.rows("host_slices", np.concatenate(rows))


@pytest.fixture
def lines(tmp_path_factory):
    """Install a package that reads lines."""
    with installed(tmp_path_factory.mktemp("packages"), "reader_of_lines", cutrace_importers=lambda: [Lines()]):
        yield


TEXT = b"slices\na 10 20\n# 20 50\nb 30 31\nbroken\n"


def test_a_file_of_another_tool_opens_as_a_trace(lines, tmp_path):
    path = tmp_path / "any.name"
    path.write_bytes(TEXT)
    with cutrace.load(path) as trace:
        rows = trace.host_slices
        assert trace.strings.take(rows["name"]).tolist() == ["a", "b"]
        assert rows[["start", "end"]].tolist() == [(10, 20), (30, 31)]
        assert [p.name for p in trace.processes] == ["writer of lines"]


def test_every_event_is_accounted_for(lines, tmp_path):
    path = tmp_path / "x"
    path.write_bytes(TEXT)
    with cutrace.load(path) as trace:
        (file,) = trace.imports
        (account,) = file.accounts
        assert account.balanced
        assert (account.seen.count, account.kept.count, account.seen.duration_ns) == (4, 2, 41)
        assert file.lost == 1
        assert [loss.detail for loss in trace.quality.losses] == ["line: no two numbers"]
        assert list(file.leftovers()) == ["1 line (30 ns) left out: a comment"]


@pytest.mark.parametrize("pack", [gzip.compress, zstandard.compress])
def test_compressed_files_are_unpacked_as_they_are_read(lines, tmp_path, pack):
    path = tmp_path / "x"
    path.write_bytes(pack(TEXT))
    with cutrace.load(path) as trace:
        assert trace.count("host_slices") == 2


@pytest.mark.parametrize("damage", [lambda packed: packed[:-8] + bytes(8), lambda packed: packed[:-8]])
def test_what_is_in_front_of_a_damage_says_what_a_file_is(tmp_path, damage):
    path = tmp_path / "a.gz"
    path.write_bytes(damage(gzip.compress(b"short")))
    assert SourceFile.at(path).head == b"short"


def test_the_head_is_short_however_much_a_file_unpacks_to(tmp_path):
    path = tmp_path / "bomb.gz"
    path.write_bytes(gzip.compress(bytes(HEAD * 100)))
    assert len(SourceFile.at(path).head) == HEAD


def test_captures_and_other_files_open_as_one(lines, tmp_path, tiny_capture):
    path = tmp_path / "x"
    path.write_bytes(TEXT)
    with opened([tiny_capture, path]) as trace:
        assert len(trace.processes) == 2
        assert set(trace.host_slices["process"].tolist()) == {1}


@pytest.fixture
def tiny_capture(tmp_path):
    from cutrace.runbin import Writer

    path = tmp_path / "tiny.bin"
    with Writer(path, pid=1):
        pass
    return path


def test_what_nothing_recognises_is_refused_with_what_to_do(lines, tmp_path):
    path = tmp_path / "x"
    path.write_bytes(b"something else\x00")
    with pytest.raises(BadCapture, match=r"not a run\.bin capture"):
        cutrace.load(path)


def test_an_importer_that_fails_leaves_nothing_behind(lines, tmp_path, monkeypatch):
    def read(self, source, out):
        out.process(0)
        raise BadCapture("nothing of it can be used")

    monkeypatch.setattr(Lines, "read", read)
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr("tempfile.tempdir", None)
    path = tmp_path / "x"
    path.write_bytes(TEXT)
    with pytest.raises(BadCapture, match="nothing of it"):
        cutrace.load(path)
    assert list((tmp_path / "tmp").iterdir()) == []


def test_converting_what_could_not_be_used_whole_ends_with_1_unless_lenient(lines, tmp_path, capsys):
    from cutrace.cli import main

    path, out = tmp_path / "x", tmp_path / "x.pftrace"
    path.write_bytes(TEXT)
    for options, status in (([], 1), (["--lenient"], 0)):
        with pytest.raises(SystemExit) as ended:
            main(["convert", str(path), "-o", str(out), *options])
        assert ended.value.code == status
        assert "1 event of the source file that could not be used (line: no two numbers)" in capsys.readouterr().err
        assert out.exists()


def test_info_names_what_was_left_out(lines, tmp_path, capsys):
    from cutrace.cli import main

    path = tmp_path / "x"
    path.write_bytes(TEXT)
    with pytest.raises(SystemExit):
        main(["info", str(path)])
    assert "1 line (30 ns) left out: a comment" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        main(["info", "--format", "json", str(path)])
    (file,) = json.loads(capsys.readouterr().out)["imports"]
    assert file["format"] == "lines"
