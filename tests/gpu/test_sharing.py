"""CUPTI with several tools in one process: either all of them work, or cutrace reports the conflict.

The other tool is written with ctypes. Whether CUPTI can be shared depends on its release and on the driver. Tests that
cannot run here are skipped with CUPTI's answer.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Record = Callable[..., Any]
Python = Callable[..., Any]

LAUNCHER = Path(__file__).with_name("launcher.py").read_text()
ALONE = "CUPTI serves no other tool"

TOOL = """
import json, os
from ctypes import CDLL, CFUNCTYPE, POINTER, Structure, addressof, byref, sizeof
from ctypes import c_char_p, c_int, c_size_t, c_uint8, c_uint32, c_void_p
import cutrace
from cutrace.collect.cuda import find_cupti

KERNELS = 10


class Parameters(Structure):
    _fields_ = [("size", c_size_t), ("name", c_char_p), ("other", c_void_p), ("room", c_size_t), ("share", c_uint8)]


class Tool:
    def __init__(self):
        try:
            self.cupti = CDLL("libcupti.so.13", mode=os.RTLD_NOW | os.RTLD_NOLOAD)
        except OSError:
            self.cupti = CDLL(str(find_cupti()))
        self.seen, self.buffers, self.handle = 0, [], c_void_p()
        self.calls = [
            CFUNCTYPE(None, c_void_p, c_int, c_uint32, c_void_p)(lambda *_: None),
            CFUNCTYPE(None, POINTER(c_void_p), POINTER(c_size_t), POINTER(c_size_t), c_void_p)(self.request),
            CFUNCTYPE(None, c_void_p, c_size_t, c_size_t, c_void_p)(self.complete),
        ]

    def begin(self):
        if not hasattr(self.cupti, "cuptiActivityEnable_v2"):
            return "this CUPTI has no functions for several tools"
        parameters = Parameters(sizeof(Parameters), b"other", None, 0, 1)
        status = self.cupti.cuptiSubscribe_v2(byref(self.handle), self.calls[0], None, byref(parameters))
        if status:
            return f"CUPTI does not serve several tools here: error {status}"
        assert not self.cupti.cuptiActivityRegisterCallbacks_v2(self.handle, self.calls[1], self.calls[2])
        assert not self.cupti.cuptiActivityEnable_v2(self.handle, KERNELS, None)
        return ""

    def end(self):
        assert not self.cupti.cuptiActivityFlushAll(0)
        assert not self.cupti.cuptiActivityDisable_v2(self.handle, KERNELS, None)
        assert not self.cupti.cuptiUnsubscribe(self.handle)
        return self.seen

    def request(self, buffer, size, records, info):
        block = (c_uint8 * 262144)()
        self.buffers.append(block)
        buffer[0], size[0], records[0] = addressof(block), sizeof(block), 0

    def complete(self, buffer, size, valid, info):
        record = c_void_p()
        next_record = self.cupti.cuptiActivityGetNextRecord_v2
        while not next_record(self.handle, c_void_p(buffer), c_size_t(valid), byref(record)):
            self.seen += c_uint32.from_address(record.value).value == KERNELS
"""


def notes(recorded: Any) -> str:
    return "\n".join(recorded.trace.processes[0].info.get("notes", ()))


INJECTED = "start(); launch(300); synchronize(); launch(300); synchronize(); print('{}')"


def test_a_recording_that_may_be_shared_holds_everything(record: Record) -> None:
    recorded = record([sys.executable, "-c", LAUNCHER + INJECTED], "--share", limit=60)
    assert recorded.report == {}
    assert len(recorded.trace.kernels) == 600
    recorded.launching_calls(recorded.trace.kernels)
    recorded.assert_lossless()


COMPANY = """
start()
tool = Tool()
with cutrace.record("run.bin", share=True):
    launch(300)
    reason = tool.begin()
    launch(300)
    synchronize()
    seen = tool.end() if not reason else 0
    launch(300)
    synchronize()
print(json.dumps({"reason": reason, "seen": seen}))
"""


def test_another_tool_may_join_unless_the_capture_says_it_cannot(python: Python) -> None:
    recorded = python(LAUNCHER + TOOL + COMPANY, limit=60)
    report = recorded.report
    assert len(recorded.trace.kernels) == 900
    recorded.assert_lossless()
    assert (ALONE in notes(recorded)) == bool(report["reason"]), (notes(recorded), report)
    assert report["seen"] == (0 if report["reason"] else 300)


JOINS = """
start()
tool = Tool()
reason = tool.begin()
if not reason:
    launch(100)
    synchronize()
    before = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
    with cutrace.record("run.bin"):
        launch(300)
        synchronize()
    after = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
    launch(100)
    synchronize()
print(json.dumps({"reason": reason} if reason else {"reason": "", "window": [before, after], "seen": tool.end()}))
"""


def test_a_tool_that_shares_is_joined_and_sees_all_that_it_would_alone(python: Python) -> None:
    recorded = python(LAUNCHER + TOOL + JOINS, limit=60)
    report = recorded.report
    if report["reason"]:
        pytest.skip(report["reason"])
    assert report["seen"] == 500
    assert len(recorded.trace.kernels) == 300
    recorded.launching_calls(recorded.trace.kernels)
    recorded.assert_lossless()
    assert "not recorded" not in notes(recorded)
    # If another tool records, CUPTI accepts no other clock than its own, so times are converted.
    before, after = report["window"]
    for rows in (recorded.trace.kernels, recorded.trace.api_calls):
        assert before < rows["start"].min() < rows["end"].max() < after
