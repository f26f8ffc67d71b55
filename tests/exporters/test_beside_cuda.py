"""Events of imported traces other than CUDA and NVTX: slices of the host and of streams, instants, counters and flows;
also attributes of devices."""

from __future__ import annotations

from pathlib import Path

import pytest

import cutrace
from captures import ORIGIN, Capture
from cutrace.exporters.perfetto import host_writer
from pftrace import Decoded, Slice, decode


def convert(capture: Path) -> Decoded:
    out = capture.with_suffix(".pftrace")
    cutrace.convert(capture, out)
    return decode(out)


def place(s: Slice) -> tuple[str, int, int, int | None]:
    return s.name, s.tid, s.start - ORIGIN, None if s.end is None else s.end - ORIGIN


@pytest.fixture(params=["whole", "pieces"])
def imported(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Decoded:
    if request.param == "pieces":
        monkeypatch.setattr(host_writer, "HOST_WINDOW", 1)
        monkeypatch.setattr(host_writer, "HOST_KEPT", 1)
    with Capture(tmp_path / "imported.bin") as c:

        def host_slice(name: str, start: int, end: int, **more: int | str) -> None:
            c.add("host_slices", start=ORIGIN + start, end=ORIGIN + end if end else 0, name=name, **more)

        c.thread(5, "worker")
        arguments = '{"Sequence number": 7, "Input Dims": [[2, 3], []], "nested": {"a": null, "b": true}}'
        host_slice("aten::mm", 100, 900, thread=5, kind=1, category="cpu_op", external=42, arguments=arguments)
        host_slice("inner", 200, 300, thread=5, kind=3)
        c.api("cudaLaunchKernel", 210, 290, thread=5, correlation=3)
        host_slice("crosses", 800, 1_000, thread=5, kind=4)
        host_slice("async", 100, 500, thread=5, kind=5, track="queue 1")
        host_slice("async too", 300, 700, thread=6, kind=5, track="queue 1")
        host_slice("never ends", 150, 0, thread=5, flags=1, arguments='{"x": 1}')
        c.add("instants", time=ORIGIN + 250, name="here", thread=5, category="cat", arguments='{"value": -1.5}')
        c.add("instants", time=ORIGIN + 260, name="process", thread=5, scope=1)
        c.add("instants", time=ORIGIN + 270, name="all", scope=2)
        c.add("instants", time=ORIGIN + 280, name="named", thread=5, track="queue 1")
        for time, value in ((10, 1.5), (20, -3.0), (30, 1e300)):
            c.add(
                "counters", time=ORIGIN + time, value=value, name="loss", unit="nats", category="train", device=0xFFFF
            )
        c.add("counters", time=ORIGIN + 15, value=7, name="memory", series="used", unit="bytes", device=1, thread=5)
        c.add("gpu_slices", start=ORIGIN + 400, end=ORIGIN + 600, name="ProfilerStep#1", kind=1, stream=7, context=1,
              category="gpu_user_annotation", correlation=9, arguments='{"External id": 42}')  # fmt: skip
        for time, phase, thread, flags in ((110, "s", 5, 0), (350, "t", 6, 1), (850, "f", 5, 1)):
            c.add("flows", time=ORIGIN + time, id=77, name="fwdbwd", category="fwdbwd", thread=thread,
                  phase=ord(phase), flags=flags)  # fmt: skip
        c.add("flows", time=ORIGIN + 111, text="0xabc", name="ac2g", thread=5, phase=ord("s"))
    return convert(tmp_path / "imported.bin")


def named(decoded: Decoded, name: str) -> Slice:
    (found,) = (s for s in decoded.slices if s.name == name)
    return found


def test_slices_of_threads_nest_among_calls(imported: Decoded) -> None:
    assert place(named(imported, "aten::mm")) == ("aten::mm", 5, 100, 900)
    assert place(named(imported, "inner")) == ("inner", 5, 200, 300)
    assert place(named(imported, "cudaLaunchKernel")) == ("cudaLaunchKernel", 5, 210, 290)
    assert named(imported, "inner").track.uuid == named(imported, "cudaLaunchKernel").track.uuid
    assert named(imported, "aten::mm").categories == ("cpu_op",)
    assert named(imported, "inner").categories == ("python",)


def test_slices_that_do_not_nest_are_counted(imported: Decoded) -> None:
    crosses = named(imported, "crosses")
    assert place(crosses) == ("crosses", 5, 800, 1_000)
    assert crosses.track.uuid != named(imported, "aten::mm").track.uuid
    assert imported.attributes["cutrace.missing.0"].startswith("1 slice shown on a separate track")


def test_slices_of_tracks_of_their_own(imported: Decoded) -> None:
    for name, span, thread in (("async", (100, 500), 5), ("async too", (300, 700), 6)):
        found = named(imported, name)
        assert (found.start - ORIGIN, (found.end or 0) - ORIGIN) == span
        assert found.track.name == "queue 1"
        assert found.args["thread"] == thread


def test_slices_that_never_ended(imported: Decoded) -> None:
    found = named(imported, "never ends")
    assert (found.start - ORIGIN, found.end, found.args) == (150, None, {"x": 1})
    assert "still open" in found.track.name


def test_arguments(imported: Decoded) -> None:
    found = named(imported, "aten::mm").args
    assert (found["external"], found["Sequence number"]) == (42, 7)
    assert "[[2, 3], []]" in str(found)
    assert named(imported, "here").args == {"value": -1.5}


def test_moments(imported: Decoded) -> None:
    found = {s.name: s for s in imported.slices if s.instant and s.categories[0] != "cutrace.missing"}
    assert {name: s.start - ORIGIN for name, s in found.items()} == {
        "here": 250, "process": 260, "all": 270, "named": 280,
    }  # fmt: skip
    assert found["here"].tid == 5
    assert found["here"].categories == ("cat",)
    assert found["process"].track.name != found["all"].track.name
    assert found["named"].track.name == "queue 1"


def test_counters(imported: Decoded) -> None:
    found = [(c.name, c.time - ORIGIN, c.value) for c in imported.counters]
    assert sorted(found) == [
        ("loss", 10, 1.5), ("loss", 20, -3.0), ("loss", 30, 1e300), ("memory, used, thread 5, device 1", 15, 7.0),
    ]  # fmt: skip
    units = {c.name: (c.track.counter.unit, c.track.counter.unit_name) for c in imported.counters}
    assert units == {"loss": (0, "nats"), "memory, used, thread 5, device 1": (3, "")}
    assert {c.categories for c in imported.counters if c.name == "loss"} == {("train",)}


def test_a_counter_keeps_the_sign_of_zero(tmp_path: Path) -> None:
    with Capture(tmp_path / "zero.bin") as c:
        c.add("counters", time=ORIGIN, value=-0.0, name="loss", device=0xFFFF)
    (sample,) = convert(tmp_path / "zero.bin").counters
    assert str(sample.value) == "-0.0"


def test_slices_of_streams(imported: Decoded) -> None:
    found = named(imported, "ProfilerStep#1")
    assert (found.start - ORIGIN, (found.end or 0) - ORIGIN) == (400, 600)
    assert found.track.name == "annotations, stream 7"
    assert found.args == {"correlation": 9, "External id": 42}


def test_arrows(imported: Decoded) -> None:
    # The step at 350 is in no slice of its thread, so viewers have no slice for it.
    found = [(s.time - ORIGIN, s.phase, s.tid, s.encloses, s.name) for s in imported.steps if s.id == 77]
    assert sorted(found) == [
        (110, "s", 5, False, "fwdbwd"), (850, "f", 5, True, "fwdbwd"),
    ]  # fmt: skip
    (other,) = (s for s in imported.steps if s.id != 77)
    assert (other.name, other.phase) == ("ac2g", "s")
    assert "1 step of flows outside any slice, not shown" in imported.attributes.values()
