"""cutrace demo: advice without a GPU or without its packages."""

from __future__ import annotations

import pytest

from cutrace.cli import demo as module
from cutrace.cli import main
from cutrace.collect import cuda


def demo(capsys, *arguments) -> str:
    with pytest.raises(SystemExit) as end:
        main(["demo", *arguments])
    assert end.value.code == 2
    return capsys.readouterr().err


def test_without_a_gpu_it_says_how_to_get_a_sample(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(cuda, "driver_version", lambda: None)
    message = demo(capsys, "-o", str(tmp_path / "demo.pftrace"))
    assert "no driver" in message
    assert "cutrace convert tests/data/" in message
    assert list(tmp_path.iterdir()) == []


def test_without_its_packages_it_says_how_to_get_them(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(cuda, "driver_version", lambda: 13000)
    monkeypatch.setattr(module, "_installed", lambda name: False)
    message = demo(capsys, "-o", str(tmp_path / "demo.pftrace"))
    assert message == "cutrace: the demo needs cuda-core and nvtx: pip install 'cutrace[demo]'\n"


def test_a_workload_that_fails_is_not_converted(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(cuda, "driver_version", lambda: 13000)
    monkeypatch.setattr(module, "_installed", lambda name: True)
    monkeypatch.setattr(module, "_COMMAND", ["sh", "-c", "exit 3"])
    assert "status 3" in demo(capsys, "-o", str(tmp_path / "demo.pftrace"))
    assert list(tmp_path.iterdir()) == []
