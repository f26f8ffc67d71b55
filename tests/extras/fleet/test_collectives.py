"""Collectives across ranks: the rank that arrives last, the waits of the others, and wrong clocks."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

import cutrace
from captures import Capture

pytest.importorskip("pyarrow")
sys.path.append(str(Path(__file__).parents[3] / "benchmarks"))

from simulate_ranks import Facts, simulate

REDUCE = "ncclDevKernel_AllReduce_Sum_f32_RING_LL"
RANKS_BIN = Path(__file__).parents[2] / "data" / "ranks.bin"


def rank(path: Path, calls: list[tuple[int, int]], *, name: str = REDUCE, boot: str = "boot") -> Path:
    with Capture(path, boot_id=boot) as c:
        launch = c.launch(name)
        for at, (start, end) in enumerate(calls):
            c.kernel(launch, start, end, correlation=at + 1)
        c.clocks()
    return path


def collectives(paths: list[Path], out: Path) -> cutrace.Batch:
    return cutrace.batch("collectives", paths, out, mode="sequential")


def rows(result: cutrace.Batch, table: int) -> list[dict[str, object]]:
    return result.reports[table].arrow().to_pylist()


def test_waits_last_until_the_last_rank_arrives(tmp_path):
    paths = [
        rank(tmp_path / "rank0.bin", [(1_000, 5_100), (6_000, 7_100)]),
        rank(tmp_path / "rank1.bin", [(3_000, 5_100), (6_500, 7_100)]),
        rank(tmp_path / "rank2.bin", [(5_000, 5_100), (7_000, 7_100)]),
    ]
    result = collectives(paths, tmp_path / "out")
    (name,) = rows(result, 0)
    assert (name["waited_ns"], name["calls"], name["ranks"]) == (4_000 + 2_000 + 1_000 + 500, 2, 3)
    assert (name["spread_ns"], name["transfer_ns"]) == (2_500, 100)
    assert (name["most_often_last"], name["last_share"]) == ("rank 2", 1)
    by_rank = {row["rank"]: row for row in rows(result, 1)}
    assert [by_rank[f"rank {n}"]["waited_ns"] for n in range(3)] == [5_000, 2_500, 0]
    assert [by_rank[f"rank {n}"]["last"] for n in range(3)] == [0, 0, 2]
    assert by_rank["rank 2"]["kept_waiting_ns"] == 7_500
    calls = rows(result, 2)
    assert [(call["call"], call["waited_ns"], call["last_rank"]) for call in calls] == [
        (1, 6_000, "rank 2"), (2, 1_500, "rank 2"),
    ]  # fmt: skip


def test_calls_of_two_real_ranks_agree_with_their_rows(tmp_path):
    result = collectives([RANKS_BIN], tmp_path / "out")
    trace = cutrace.load(RANKS_BIN)
    kernels = trace.kernels
    nccl = trace.strings.take(trace.launches["name"], lambda name: "nccl" in name).astype(bool)[kernels["launch"]]
    starts, ends = (
        [sorted(kernels[field][nccl & (kernels["process"] == process)].tolist()) for process in (0, 1)]
        for field in ("start", "end")
    )
    by_rank = {row["rank"]: row for row in rows(result, 1)}
    # Both ranks ran on one machine, so their clocks agree. Only the ends of a call differ a little.
    apart = sorted(b - a for a, b in zip(*ends, strict=True))
    assert abs(by_rank["rank 1"]["clock_ahead_ns"] - by_rank["rank 0"]["clock_ahead_ns"]) <= max(map(abs, apart))
    waits = [max(a, b) - b for a, b in zip(*starts, strict=True)]
    assert by_rank["rank 1"]["waited_ns"] == pytest.approx(sum(waits), abs=2_000 * len(waits))
    assert by_rank["rank 0"]["last"] == len(waits) == 6


def test_transfers_between_two_ranks_and_other_kernels_do_not_count(tmp_path):
    name = "ncclDevKernel_SendRecv"
    paths = [rank(tmp_path / f"rank{n}.bin", [(1_000, 2_000)], name=("gemm", name)[n]) for n in range(2)]
    assert [list(report.rows) for report in collectives(paths, tmp_path / "out").reports] == [[], [], [], []]


@pytest.mark.parametrize(("later", "has"), [(2, "6 calls"), (7, "1 call")])
def test_a_rank_that_began_to_record_later_is_said_and_matched_by_time(tmp_path, later, has):
    calls = [(1_000_000 * n, 1_000_000 * n + 1_000) for n in range(1, 9)]
    paths = [rank(tmp_path / f"rank{n}.bin", calls[later:] if n == 3 else calls) for n in range(4)]
    result = collectives(paths, tmp_path / "out")
    assert result.sentences == [
        f"rank 3: it has {has} of {REDUCE}, and others have 8: its first call counts as number {later + 1}"
    ]
    assert {row["waited_ns"] for row in rows(result, 0)} == {0}


def test_planted_ranks_and_clocks_are_found_and_nothing_else(tmp_path):
    facts = Facts(slow={5: 1.2}, stalled={9: 400_000}, clocks={2: -3_000_000})
    paths = simulate(tmp_path, 24, 2, facts)
    result = collectives(paths, tmp_path / "out")
    late = [sentence for sentence in result.sentences if "late to a collective" in sentence]
    (clock,) = (sentence for sentence in result.sentences if "clock" in sentence)
    assert {sentence.split(":")[0] for sentence in late} == {"rank 5 on node000", "rank 9 on node001"}
    assert re.fullmatch(r"rank 16 to rank 23 on node002: clock (2.9|3.0)\d ms behind the other clocks, by .*", clock)
    assert len(result.sentences) == len(late) + 1
    calm = collectives(simulate(tmp_path / "calm", 24, 2, Facts()), tmp_path / "out2")
    assert calm.sentences == []


def test_late_ranks_of_a_host_share_a_sentence(tmp_path):
    slow = dict.fromkeys(range(16, 24), 1.2)
    result = collectives(simulate(tmp_path, 32, 2, Facts(slow=slow)), tmp_path / "out")
    (sentence,) = result.sentences
    assert re.match(
        r"8 of 8 ranks of node002: they come \S+ [mu]s late to a collective on average, and one of them is", sentence
    )
    last, calls = map(int, re.search(r"the last at (\d+) of (\d+) calls", sentence).groups())
    assert calls / 2 < last <= calls
    hosts = {row["rank"]: row["host"] for row in rows(result, 1)}
    assert hosts["rank 17"] == "node002"


@pytest.mark.parametrize(("gap", "names"), [(20_000, 1), (20_001, 0)])
def test_calls_with_a_gap_of_more_than_the_tolerance_are_no_collectives(tmp_path, gap, names):
    first = [(1_000_000 * n, 1_000_000 * n + 1_000) for n in range(1, 9)]
    second = [(end + gap, end + gap + 1_000) for _, end in first]
    paths = [rank(tmp_path / "rank0.bin", first), rank(tmp_path / "rank1.bin", second)]
    assert len(rows(collectives(paths, tmp_path / "out"), 0)) == names


@pytest.mark.parametrize("ppm", [50, -30])
def test_a_clock_that_drifts_is_named_with_its_drift(tmp_path, ppm):
    calls = [(100_000_000 * n, 100_000_000 * n + 50_000) for n in range(1, 300)]
    moved = [tuple(round(time * (1 + ppm / 1e6)) for time in call) for call in calls]
    paths = [
        rank(tmp_path / f"rank{n}.bin", moved if n > 3 else calls, boot=f"boot {n // 2}") for n in range(6)
    ]  # fmt: skip
    result = collectives(paths, tmp_path / "out")
    (sentence,) = result.sentences
    refused, _, reason = sentence.partition(": ")
    assert refused.startswith(f"598 calls of {REDUCE} on ranks 4 and 5 cannot be matched with those on ranks 0 to 3")
    assert reason.startswith(f"their clock drifts by {ppm:+} us a second from the others. Keep the clocks")
    (name,) = rows(result, 0)
    assert (name["ranks"], name["waited_ns"]) == (4, 0)


def test_only_consecutive_ranks_share_a_sentence_about_their_clock(tmp_path):
    calls = [(1_000_000 * n, 1_000_000 * n + 1_000) for n in range(1, 9)]
    late = [(start + 300_000, end + 300_000) for start, end in calls]
    paths = [
        rank(tmp_path / f"rank{n}.bin", late if n in (1, 2, 6) else calls, boot=f"boot {n // 3} {n in (1, 2)}")
        for n in range(9)
    ]
    paths[6:] = [rank(tmp_path / f"rank{n}.bin", late if n == 6 else calls, boot=f"boot {n}") for n in range(6, 9)]
    clocks = [
        sentence.split(":")[0] for sentence in collectives(paths, tmp_path / "out").sentences if "clock" in sentence
    ]
    assert clocks == ["rank 1 to rank 2", "rank 6"]
