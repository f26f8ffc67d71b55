"""Files at URLs."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import cutrace
from captures import Capture
from cutrace.cli import main

pytest.importorskip("pyarrow")
fsspec = pytest.importorskip("fsspec")


def ranks(folder: Path, count: int = 3) -> list[Path]:
    folder.mkdir(exist_ok=True)
    paths = [folder / f"rank{number}.bin" for number in range(count)]
    for number, path in enumerate(paths):
        with Capture(path, pid=100 + number) as c:
            c.kernel(c.launch("_Z4gemmPf"), 0, 1_000 + number, correlation=1)
    return paths


@pytest.fixture
def memory(tmp_path) -> Iterator[str]:
    """The URL of a folder in memory that has three ranks."""
    files = fsspec.filesystem("memory")
    for path in ranks(tmp_path / "run"):
        files.pipe_file(f"/bucket/run/{path.name}", path.read_bytes())
    yield "memory://bucket/run"
    files.rm("/bucket", recursive=True)


def states(result: cutrace.Batch) -> list[str]:
    return [file.state for file in result.files]


def test_files_of_urls_give_the_report_of_the_files(tmp_path, memory):
    local = cutrace.batch("all", sorted((tmp_path / "run").iterdir()), tmp_path / "a", mode="sequential")
    for number, sources in enumerate(([f"{memory}/rank{number}.bin" for number in range(3)], [f"{memory}/*.bin"])):
        out = tmp_path / f"b{number}"
        remote = cutrace.batch("all", sources, out, mode="sequential")
        assert str(remote) == str(local)
        assert states(remote) == ["done"] * 3
        assert (out / "kernels" / "job=run" / "rank=2").is_dir()


def test_files_of_urls_are_read_again_when_they_change(tmp_path, memory):
    sources, out = [f"{memory}/*.bin"], tmp_path / "out"
    assert states(cutrace.batch("kernels", sources, out, mode="sequential")) == ["done"] * 3
    assert states(cutrace.batch("kernels", sources, out, mode="sequential")) == ["skipped"] * 3
    with Capture(tmp_path / "new.bin", pid=101) as c:
        c.kernel(c.launch("_Z4gemmPf"), 0, 7, correlation=1)
    fsspec.filesystem("memory").pipe_file("/bucket/run/rank1.bin", (tmp_path / "new.bin").read_bytes())
    assert states(cutrace.batch("kernels", sources, out, mode="sequential")) == ["skipped", "done", "skipped"]


def test_a_damaged_and_an_absent_file_of_a_url_are_listed(tmp_path, memory):
    fsspec.filesystem("memory").pipe_file("/bucket/run/rank1.bin", b"no capture")
    sources = [f"{memory}/rank{number}.bin" for number in (0, 1, 9)]
    result = cutrace.batch("kernels", sources, tmp_path / "out", mode="sequential")
    assert states(result) == ["done", "damaged", "damaged"]
    assert result.files[2].notes[0].startswith(f"cannot read {sources[2]}: ")
    for file, source in zip(result.files[1:], sources[1:], strict=True):
        (note,) = file.notes
        assert note.count(source) == 1
        assert "cutrace." not in note


def test_processes_read_urls(tmp_path):
    paths = ranks(tmp_path / "run")
    local = cutrace.batch("kernels", paths, tmp_path / "a", mode="sequential")
    remote = cutrace.batch("kernels", [f"local://{tmp_path}/run/*.bin"], tmp_path / "b", workers=2)
    assert str(remote) == str(local)
    assert all("://" in file.source for file in remote.files)


def test_a_file_url_is_a_path(tmp_path):
    paths = ranks(tmp_path / "my run")
    result = cutrace.batch("kernels", [path.as_uri() for path in paths], tmp_path / "out", mode="sequential")
    assert [file.source for file in result.files] == list(map(str, paths))


def test_a_file_url_may_be_a_pattern(tmp_path):
    paths = [*ranks(tmp_path / "my run"), *ranks(tmp_path / "[odd] #1?")]
    for pattern in (f"{(tmp_path / 'my run').as_uri()}/*.bin", f"{(tmp_path / 'my run').as_uri()}/rank?.bin"):
        result = cutrace.batch("kernels", pattern, tmp_path / "out", mode="sequential")
        assert [file.source for file in result.files] == list(map(str, paths[:3]))
    odd = cutrace.batch("kernels", [path.as_uri() for path in paths[3:]], tmp_path / "out", mode="sequential")
    assert [file.source for file in odd.files] == list(map(str, paths[3:]))
    with pytest.raises(cutrace.CutraceError, match=r"no file matches \S+no\*\.bin"):
        cutrace.batch("kernels", f"{tmp_path.as_uri()}/no*.bin", tmp_path / "out", mode="sequential")


def test_the_command_takes_urls(tmp_path, memory, capsys):
    with pytest.raises(SystemExit) as ended:
        main(["batch", "kernels", f"{memory}/*.bin", "-o", str(tmp_path / "out"), "--mode", "sequential"])
    assert not ended.value.code
    assert "3 done" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("source", "sentence"),
    [
        ("memory://nowhere/*.bin", r"nothing matches memory://nowhere/\*\.bin"),
        ("nonsense://a/b.bin", "cannot read nonsense://a/b.bin: Protocol not known: nonsense"),
    ],
)
def test_urls_that_name_nothing_are_explained(tmp_path, source, sentence):
    with pytest.raises(cutrace.CutraceError, match=sentence):
        cutrace.batch("kernels", [source], tmp_path / "out", mode="sequential")


def test_without_fsspec_a_sentence_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "fsspec.core", None)
    with pytest.raises(cutrace.CutraceError, match=r"a\.bin needs fsspec and its package for s3"):
        cutrace.batch("kernels", ["s3://bucket/a.bin"], tmp_path / "out", mode="sequential")
