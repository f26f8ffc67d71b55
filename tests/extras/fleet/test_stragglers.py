"""Ranks that stand out: a single rank, all ranks of a host, or one of two groups."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import cutrace
from captures import Capture
from cutrace.extras.fleet.stragglers import Measured, stragglers

SENTENCE = "{who}: {its} time is {ratio:.2f} times that of {others}, {value:.0f} to {usual:.0f}"


def measured(values, *, of_host: int = 8, job="j") -> list[Measured]:
    """GPUs of hosts with ``of_host`` GPUs each. With 0, the hosts are unknown."""
    gpus = []
    for number, value in enumerate(values):
        host = f"node{number // of_host}" if of_host else ""
        gpus.append(Measured(f"rank {number} GPU 0", host, job, float(value), "GPU"))
    return gpus


def noisy(count: int, *, slow: dict[int, float] | None = None) -> np.ndarray:
    values = 1000 + np.arange(count) * 7 % 13
    values = values.astype(float)
    for number, factor in (slow or {}).items():
        values[number] *= factor
    return values


def test_all_of_a_host_share_a_sentence():
    values = noisy(64, slow=dict.fromkeys(range(24, 32), 1.55))
    (sentence,) = stragglers(measured(values), SENTENCE)
    assert sentence.startswith("8 of 8 GPUs of node3: their time is 1.5")
    assert "times that of the median GPU, 1" in sentence


def test_some_of_a_host_are_named_alone_and_with_it():
    values = noisy(64, slow={25: 1.5, 30: 1.4})
    first, second = stragglers(measured(values), SENTENCE)
    assert first.startswith("rank 25 GPU 0 on node3: its time is 1.5")
    assert second.startswith("rank 30 GPU 0 on node3: its time is 1.39")


def test_the_host_is_left_out_where_there_is_one_or_none():
    for of_host in (64, 0):
        (sentence,) = stragglers(measured(noisy(64, slow={25: 1.5}), of_host=of_host), SENTENCE)
        assert sentence.startswith("rank 25 GPU 0: its")


def test_hosts_with_one_gpu_are_named_alone():
    (sentence,) = stragglers(measured(noisy(16, slow={5: 2}), of_host=1), SENTENCE)
    assert sentence.startswith("rank 5 GPU 0 on node5: its")


def test_ranks_that_wait_for_a_slow_host_are_not_told():
    values = noisy(32, slow=dict.fromkeys(range(24), 7))
    assert len(stragglers(measured(values), SENTENCE)) == 1
    assert stragglers(measured(values), SENTENCE, halves=False) == []


def test_half_of_the_ranks_are_told_with_their_hosts():
    values = noisy(96, slow=dict.fromkeys(range(48), 1.2))
    (sentence,) = stragglers(measured(values), SENTENCE)
    assert sentence.startswith(
        "48 of 96 GPUs, all of node0 to node5: their time is 1.20 times that of the other GPUs, 1"
    )


def test_the_lower_half_is_told_where_low_is_bad():
    values = 1 / noisy(96, slow=dict.fromkeys(range(40, 96), 2))
    sentence = "{who}: busy {value:.2%}, {others} {usual:.2%}"
    assert stragglers(measured(values), sentence, low=True) == [
        "56 of 96 GPUs, all of node5 to node11: busy 0.05%, the other GPUs 0.10%"
    ]


def test_two_hosts_of_which_one_is_slow():
    values = noisy(8, slow=dict.fromkeys(range(4, 8), 1.2))
    (sentence,) = stragglers(measured(values, of_host=4), SENTENCE)
    assert sentence.startswith("4 of 8 GPUs, all of node1: their time is 1.20 times")
    mixed = values[[0, 4, 1, 5, 2, 6, 3, 7]]
    assert not stragglers(measured(mixed, of_host=4), SENTENCE), "so few look like two groups by chance"


def test_groups_that_are_no_hosts_are_listed():
    values = noisy(32, slow=dict.fromkeys([*range(8), 9, 11, 13, 17, 20, 22, 30], 1.2))
    (sentence,) = stragglers(measured(values), SENTENCE)
    listed = "all of node0, rank 9 GPU 0, rank 11 GPU 0, rank 13 GPU 0, rank 17 GPU 0, rank 20 GPU 0, rank 22 GPU 0"
    assert sentence.startswith(f"15 of 32 GPUs, {listed} and rank 30 GPU 0: their")
    (sentence,) = stragglers(measured(values, of_host=0), SENTENCE)
    assert "GPUs, rank 0 GPU 0, rank 1 GPU 0," in sentence
    assert ", rank 7 GPU 0 and 7 more: their" in sentence


def test_the_groups_are_those_of_a_job():
    one = measured(noisy(32), job="a")
    other = measured(1.3 * noisy(32), job="b")
    assert not stragglers([*one, *other], SENTENCE)


def test_one_stray_rank_does_not_hide_two_groups():
    values = noisy(64, slow=dict.fromkeys(range(32), 1.2) | {40: 1.1})
    (sentence,) = stragglers(measured(values), SENTENCE)
    assert sentence.startswith("33 of 64 GPUs, all of node0 to node3 and rank 40 GPU 0: their")


def test_a_rank_that_is_far_from_both_groups_is_named_with_them():
    values = noisy(64, slow=dict.fromkeys(range(32), 1.2) | {40: 3, 5: 2})
    both, first, second = stragglers(measured(values), SENTENCE)
    assert both.startswith("33 of 64 GPUs, all of node0 to node3 and rank 40 GPU 0: their time is 1.")
    assert first.startswith("rank 40 GPU 0 on node5: its time is 2.5")
    assert "that of the median of these GPUs" in first
    assert second.startswith("rank 5 GPU 0 on node0: its time is 1.6")


def test_a_small_difference_is_none():
    values = np.array([1000.0, 1001, 1000, 1001] * 4 + [1020.0, 1021, 1020, 1021] * 4)
    assert not stragglers(measured(values), SENTENCE)


@pytest.mark.parametrize("draw", ["normal", "uniform", "exponential", "laplace", "lognormal"])
@pytest.mark.parametrize("count", [8, 16, 64])
def test_numbers_with_one_peak_are_one_group(draw, count):
    random = np.random.default_rng(11)
    wrong = 0
    for _ in range(1000):
        values = 100 + 10 * getattr(random, draw)(size=count)
        wrong += any("the other GPUs" in text for text in stragglers(measured(values, of_host=4), SENTENCE))
    assert wrong <= 2


def test_a_report_groups_the_gpus_of_a_host(tmp_path: Path):
    paths = []
    for rank in range(12):
        path = tmp_path / f"{rank}.bin"
        variables = {"RANK": str(rank), "WORLD_SIZE": "12"}
        with Capture(path, pid=100 + rank, host=f"node{rank // 4}", environment=variables) as c:
            gemm = c.launch("_Z4gemmPf")
            length = 2_000 if rank // 4 == 1 else 1_000
            for step in range(20):
                start = 10_000 * step
                c.kernel(gemm, start, start + length + (step + rank) % 7, correlation=step + 1)
            c.clocks()
        paths.append(path)
    out = tmp_path / "out"
    (sentence,) = cutrace.batch("kernels", paths, out, mode="sequential").sentences
    assert sentence.startswith(
        "4 of 4 ranks of node1: their kernels take 2.00 times as long as those of the median rank"
    )
    (sentence,) = cutrace.batch("pace", paths, out, mode="sequential", name="gemm").sentences
    assert sentence.startswith("4 of 4 ranks of node1: kernel gemm takes 2.00 times as long as on the median rank")
    for report in ("utilization", "gaps", "overlap"):
        table = cutrace.batch(report, paths, out, mode="sequential").reports[-1].arrow()
        assert sorted(table["host"].to_pylist()) == ["node0"] * 4 + ["node1"] * 4 + ["node2"] * 4
