"""cutrace doctor: the page and the JSON of its checks."""

from __future__ import annotations

import json

import pytest

from cutrace.cli import doctor as module
from cutrace.cli import main
from cutrace.collect.checks import Check

GOOD = (Check("driver", "ok", "580.65, CUDA 13.0"), Check("NVTX", "ok", "a mark was recorded"))
BAD = (Check("driver", "problem", "none [x]", "install it"), Check("NVTX", "ok", "a mark was recorded"))


def doctor(monkeypatch, capsys, checks, *arguments) -> tuple[int, str]:
    monkeypatch.setattr(module, "run_checks", lambda: checks)
    with pytest.raises(SystemExit) as end:
        main(["doctor", *arguments])
    return end.value.code, capsys.readouterr().out


def test_status_0_when_a_capture_can_be_made(monkeypatch, capsys):
    status, out = doctor(monkeypatch, capsys, GOOD)
    assert status == 0
    assert out.splitlines() == [
        "ok       driver  580.65, CUDA 13.0",
        "ok       NVTX    a mark was recorded",
        "GPU work can be recorded here.",
    ]


def test_status_1_and_advice_when_it_cannot(monkeypatch, capsys):
    status, out = doctor(monkeypatch, capsys, BAD)
    assert status == 1
    assert out.splitlines()[:2] == ["problem  driver  none [x]", "                 -> install it"]
    assert out.splitlines()[-1].startswith("GPU work cannot be recorded here, NVTX can.")


def test_findings_fill_the_width_of_a_terminal(monkeypatch, capsys):
    monkeypatch.setattr(module, "terminal_width", lambda: 60)
    checks = (Check("driver", "problem", "aaaa " * 12, "bbbb " * 12),)
    _, out = doctor(monkeypatch, capsys, checks)
    *shown, _ = out.splitlines()
    # The column of findings starts after 17 characters and ends at 60, which leaves room for 8 words.
    assert shown == [
        "problem  driver  " + " ".join(["aaaa"] * 8),
        " " * 17 + " ".join(["aaaa"] * 4),
        " " * 17 + "-> " + " ".join(["bbbb"] * 8),
        " " * 17 + " ".join(["bbbb"] * 4),
    ]


def test_json_has_every_check(monkeypatch, capsys):
    status, out = doctor(monkeypatch, capsys, BAD, "--format", "json")
    assert status == 1
    assert json.loads(out) == {
        "format": 1,
        "kind": "cutrace doctor",
        "can_record": False,
        "checks": [
            {"name": "driver", "status": "problem", "finding": "none [x]", "advice": "install it"},
            {"name": "NVTX", "status": "ok", "finding": "a mark was recorded", "advice": ""},
        ],
    }
