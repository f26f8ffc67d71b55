"""The parts of a trace for Perfetto's GPU queries: arguments of kernels, GPU counters, intervals and GPUs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import cutrace
from captures import DATA
from support.traceprocessor import query

#: The arguments of kernels that queries about launches and occupancy read.
LAUNCH = (
    "kernel_demangled_name", "kernel_name", "workgroup_size", "grid_size", "thread_count", "registers_per_thread",
    "shared_mem_static", "shared_mem_dynamic", "shared_mem_config_size",
    "waves_per_multiprocessor", "sm__maximum_warps_per_active_cycle_pct", "occupancy_limit_blocks",
    "occupancy_limit_warps", "occupancy_limit_registers", "occupancy_limit_shared_mem",
)  # fmt: skip

#: The GPU counters that queries about the speed of light, occupancy and workload read.
METRICS = (
    "gpu__compute_memory_throughput.avg.pct_of_peak_sustained_elapsed",
    "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed",
    "l1tex__throughput.avg.pct_of_peak_sustained_active",
    "lts__throughput.avg.pct_of_peak_sustained_elapsed",
    "sm__inst_executed.avg.per_cycle_active",
    "sm__instruction_throughput.avg.pct_of_peak_sustained_active",
    "sm__pipe_alu_cycles_active.avg.pct_of_peak_sustained_active",
    "sm__pipe_fma_cycles_active.avg.pct_of_peak_sustained_active",
    "sm__throughput.avg.pct_of_peak_sustained_elapsed",
    "sm__warps_active.avg.pct_of_peak_sustained_active",
)


@pytest.fixture(scope="module")
def profiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("profiled") / "run.pftrace"
    cutrace.convert(DATA / "profiled.bin", out)
    return out


def test_each_kernel_has_the_arguments_of_its_launch(profiled: Path) -> None:
    filled = ", ".join(f"count(extract_arg(arg_set_id, '{name}')) as a{i}" for i, name in enumerate(LAUNCH))
    (row,) = query(
        profiled,
        f"select count(*) as kernels, count(extract_arg(arg_set_id, 'barriers_per_block')) as barriers, {filled} "
        "from gpu_slice where extract_arg(arg_set_id, 'kernel_name') is not null",
    )
    kernels = row.pop("kernels")
    assert int(kernels) == 166
    assert row.pop("barriers") == "0"  # CUPTI does not report them
    assert set(row.values()) == {kernels}


def test_profiled_kernels_have_their_metrics_between_begin_and_end(profiled: Path) -> None:
    names = ", ".join(f"'{name}'" for name in METRICS)
    rows = query(
        profiled,
        "select t.name as name, count(distinct s.id) as kernels from gpu_slice s join gpu_track g on g.id = s.track_id "
        "join gpu_counter_track t on t.ugpu = extract_arg(g.dimension_arg_set_id, 'ugpu') "
        "join gpu_counter_group c on c.track_id = t.id and c.group_id = 6 "
        "join counter v on v.track_id = t.id and v.ts >= s.ts and v.ts < s.ts + s.dur "
        f"where t.name in ({names}) and v.value > 0 group by 1 order by 1",
    )
    assert rows == [{"name": name, "kernels": "12"} for name in sorted(METRICS)]


def test_the_time_in_which_a_gpu_is_busy(profiled: Path) -> None:
    (row,) = query(
        profiled,
        "include perfetto module intervals.overlap; select count(*) as pieces, sum(dur) as busy from "
        "interval_merge_overlapping_partitioned!((select s.ts, s.dur, extract_arg(t.dimension_arg_set_id, 'ugpu') "
        "as ugpu from gpu_slice s join gpu_track t on s.track_id = t.id where s.dur > 0), (ugpu))",
    )
    with cutrace.load(profiled) as trace:
        tables = [table[["start", "end"]] for table in (trace.kernels, trace.memcpys, trace.memsets)]
    work = np.sort(np.concatenate(tables), order="start")
    reach = np.maximum.accumulate(work["end"])
    first = np.append(True, work["start"][1:] > reach[:-1])
    begins = work["start"][first]
    ends = np.append(reach[:-1][first[1:]], reach[-1])
    assert row == {"pieces": str(len(begins)), "busy": str(int((ends - begins).sum()))}


def test_facts_of_the_gpu(profiled: Path) -> None:
    (row,) = query(profiled, "select ugpu, vendor, name, model, architecture, uuid, pci_bdf from gpu")
    with cutrace.load(profiled) as trace:
        device = trace.devices[0]
        pci = trace.strings[device["pci"]]
    model = "NVIDIA H200"
    assert list(row.values()) == ["0", "NVIDIA", model, model, "Hopper", bytes(device["uuid"]).hex(), pci]
