"""Theoretical occupancy, against figures of NVIDIA's occupancy calculator."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from cutrace.analysis.occupancy import UNLIMITED, occupancy
from cutrace.runbin import TABLES

H100 = {
    "compute_major": 9, "multiprocessors": 132, "warp_size": 32, "max_warps_per_multiprocessor": 64,
    "max_blocks_per_multiprocessor": 32, "registers_per_multiprocessor": 65536, "shared_per_multiprocessor": 233_472,
    "shared_reserved_per_block": 1024,
}  # fmt: skip
V100 = H100 | {
    "compute_major": 7, "multiprocessors": 80, "shared_per_multiprocessor": 98_304, "shared_reserved_per_block": 0,
}  # fmt: skip


def of(device: dict[str, int] = H100, **launch: int) -> Any:
    """The occupancy of one launch, None if it is unknown."""
    found = many(device, **{name: [value] for name, value in launch.items()})
    if found is None or not found.known[0]:
        return None
    return SimpleNamespace(**{name: values[0].item() for name, values in found._asdict().items()})


def many(device: dict[str, int] = H100, **launches: list[int]) -> Any:
    count = len(next(iter(launches.values()), [0]))
    usual = {"threads": [256], "registers": [32], "shared": [0], "grid_blocks": [132]}
    fields = {"threads": "block_x", "registers": "registers", "shared": "dynamic_shared", "grid_blocks": "grid_x"}
    rows = np.zeros(count, TABLES["launches"].dtype)
    for axis in "yz":
        rows[f"block_{axis}"] = rows[f"grid_{axis}"] = 1
    for name, values in usual.items():
        rows[fields[name]] = launches.get(name, values * count)
    facts = np.zeros(1, TABLES["devices"].dtype)
    for name, value in device.items():
        facts[name] = value
    return occupancy(facts[0], rows)


@pytest.mark.parametrize(
    ("launch", "blocks", "percent"),
    [
        ({}, 8, 100.0),  # warps limit: 64 / 8
        ({"threads": 1024}, 2, 100.0),
        ({"threads": 32}, 32, 50.0),  # slots for blocks limit
        ({"threads": 33}, 32, 100.0),  # a partial warp counts as a whole one
        ({"registers": 64}, 4, 50.0),
        ({"registers": 255}, 1, 12.5),
        ({"registers": 65}, 3, 37.5),  # 72 registers after rounding: 28 warps
        ({"shared": 49_152}, 4, 50.0),  # 233472 / (49152 + 1024)
        ({"shared": 232_448}, 1, 12.5),
        ({"registers": 0}, 8, 100.0),
    ],
)
def test_blocks_on_a_multiprocessor(launch: dict[str, int], blocks: int, percent: float) -> None:
    found = of(**launch)
    assert (found.blocks, found.percent) == (blocks, percent)
    assert found.warps == found.percent * 64 / 100


def test_each_limit_is_told() -> None:
    found = of(registers=64, shared=49_152)
    assert (found.limit_blocks, found.limit_warps, found.limit_registers, found.limit_shared) == (32, 8, 4, 4)
    assert of(V100).limit_shared == UNLIMITED


def test_waves_fill_the_whole_device() -> None:
    assert of(grid_blocks=132 * 8).waves == 1.0
    assert of(V100, grid_blocks=80 * 8 * 3).waves == 3.0


def test_a_block_that_does_not_fit() -> None:
    found = of(shared=300_000)
    assert (found.blocks, found.percent, found.waves) == (0, 0.0, 0.0)


@pytest.mark.parametrize("fact", ["multiprocessors", "max_warps_per_multiprocessor", "registers_per_multiprocessor"])
def test_without_the_facts_of_the_device_there_is_none(fact: str) -> None:
    assert of(H100 | {fact: 0}) is None
    assert of(threads=0) is None


def test_launches_do_not_meddle_with_each_other() -> None:
    launches = {"threads": [256, 0, 32], "registers": [64, 32, 0], "shared": [0, 0, 49_152]}
    found = many(**launches)
    assert found.known.tolist() == [True, False, True]
    for i in (0, 2):
        alone = of(**{name: values[i] for name, values in launches.items()})
        assert {name: values[i].item() for name, values in found._asdict().items()} == vars(alone)
