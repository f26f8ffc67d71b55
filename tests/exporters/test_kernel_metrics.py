"""Hardware metrics of kernels in a Perfetto trace. The GPU Compute tab shows the right values for each kernel."""

from __future__ import annotations

from pathlib import Path

import pytest

import cutrace
from captures import ORIGIN, Capture
from pftrace import packets
from support.traceprocessor import query

METRIC = "dram__bytes.sum"
#: The tab's query: it reads metrics on all GPUs, between the start and the end of a kernel.
TAB = """
    select s.ts - {origin} as start, sum(c.value) as value from gpu_slice s
    join counter c on c.ts >= s.ts and c.ts < s.ts + s.dur
    join gpu_counter_group g on g.track_id = c.track_id and g.group_id = 6
    where s.render_stage_category = 2 group by s.id order by s.ts
"""


def trace_of(folder: Path, *kernels: tuple[int, int, float | None]) -> Path:
    """The trace of kernels that alternate between two GPUs. A kernel is its start, its end, and the value of its metric
    or None."""
    path = folder / "run.bin"
    with Capture(path) as c:
        for device in (0, 1):
            c.device(device, uuid=bytes([device + 1] * 16))
            c.context(device + 1, device)
        for number, (start, end, value) in enumerate(kernels):
            device = number % 2
            where = {"device": device, "correlation": number + 1}
            c.kernel(c.launch(f"kernel{number}"), start, end, context=device + 1, **where)
            if value is not None:
                times = {"start": ORIGIN + start, "end": ORIGIN + end}
                c.add("kernel_metrics", **times, **where, name=METRIC, value=value)
    cutrace.convert(path, path.with_suffix(".pftrace"))
    return path.with_suffix(".pftrace")


def written(trace: Path) -> list[tuple[int, float]]:
    """The times and values of the metric."""
    found = []
    for packet in packets(trace):
        if packet.HasField("gpu_counter_event"):
            assert packet.timestamp_clock_id == 6, "BOOTTIME"
            found += [(packet.timestamp - ORIGIN, c.double_value) for c in packet.gpu_counter_event.counters]
    return sorted(found)


def notices(trace: Path) -> list[str]:
    attributes = [a for packet in packets(trace) for a in packet.trace_attributes.attribute]
    return [a.string_value for a in attributes if a.key.startswith("cutrace.missing.")]


def shown(trace: Path) -> dict[int, float]:
    """The values that the tab shows, by the start of the kernel."""
    return {int(row["start"]): float(row["value"]) for row in query(trace, TAB.format(origin=ORIGIN))}


APART = ((100, 200, 5.0), (300, 400, None), (500, 600, 7.0))
#: The second kernel starts during the first, and the fourth during the third. The fifth is alone.
OVERLAPPING = ((100, 200, 5.0), (150, 250, 6.0), (300, 400, 7.0), (350, 450, None), (500, 600, 8.0))
#: The first kernel starts before the second and ends after it.
AROUND = ((100, 400, None), (200, 300, 5.0))
INSIDE = ((100, 400, 5.0), (200, 300, None))
ADJACENT = ((100, 200, 5.0), (200, 300, None), (300, 400, 6.0), (400, 500, 7.0))


def test_values_of_kernels_apart_are_written_between_their_begins_and_ends(tmp_path: Path) -> None:
    trace = trace_of(tmp_path, *APART)
    assert written(trace) == [(100, 5.0), (200, 0.0), (500, 7.0), (600, 0.0)]
    assert notices(trace) == []


def test_values_that_another_kernel_would_get_are_left_out_and_counted(tmp_path: Path) -> None:
    trace = trace_of(tmp_path, *OVERLAPPING)
    assert written(trace) == [(500, 8.0), (600, 0.0)]
    (notice,) = notices(trace)
    assert notice.startswith("3 values of hardware metrics of overlapping kernels")


def test_a_kernel_that_runs_beside_the_whole_of_another_one(tmp_path: Path) -> None:
    around = trace_of(tmp_path, *AROUND)
    assert (written(around), len(notices(around))) == ([], 1)
    inside = trace_of(tmp_path, *INSIDE)
    assert (written(inside), notices(inside)) == ([(100, 5.0), (400, 0.0)], [])


def test_no_zero_is_written_where_any_kernel_begins(tmp_path: Path) -> None:
    assert written(trace_of(tmp_path, *ADJACENT)) == [(100, 5.0), (300, 6.0), (400, 7.0), (500, 0.0)]


@pytest.mark.parametrize("kernels", [APART, OVERLAPPING, AROUND, INSIDE, ADJACENT])
def test_the_tab_shows_each_kernel_its_own_values_or_none(
    tmp_path: Path, kernels: tuple[tuple[int, int, float | None], ...]
) -> None:
    own = {start: value for start, _, value in kernels if value is not None}
    found = shown(trace_of(tmp_path, *kernels))
    assert found.items() <= own.items()
