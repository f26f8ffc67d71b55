"""Theoretical occupancy of a kernel launch, from its configuration and the attributes of its device.

Four resources limit the number of resident blocks of a multiprocessor: block slots, warp slots, registers and shared
memory. The smallest limit applies. Achieved occupancy also depends on the balance of the blocks, which the launch
configuration does not determine.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

#: The allocation unit of registers of a warp, and the number of schedulers of a multiprocessor.
_REGISTER_UNIT = 256
_SCHEDULERS = 4

#: The value of a limit that does not apply.
UNLIMITED = -1


class Occupancy(NamedTuple):
    """Arrays with an entry for each launch: blocks that fit on a multiprocessor by each limit, and the resulting
    occupancy.

    ``limit_registers`` and ``limit_shared`` are :data:`UNLIMITED` if a launch does not use the resource. ``warps`` is
    the maximum of resident warps on a multiprocessor, and ``percent`` their share of its warp slots. ``waves`` is the
    grid in multiples of the resident blocks of the whole device. ``known`` is False for launches without threads:
    captures mark an unknown configuration so. Their other values are meaningless.
    """

    known: np.ndarray
    limit_blocks: np.ndarray
    limit_warps: np.ndarray
    limit_registers: np.ndarray
    limit_shared: np.ndarray
    blocks: np.ndarray
    warps: np.ndarray
    percent: np.ndarray
    waves: np.ndarray


def _round_up(values: np.ndarray, unit: int) -> np.ndarray:
    return -(-values // unit) * unit


def volume(launches: np.ndarray, of: str) -> np.ndarray:
    """The number of blocks of the ``grid``, or of threads of the ``block``, of each launch."""
    x, y, z = (launches[f"{of}_{axis}"].astype(np.uint64) for axis in "xyz")
    return x * y * z


def occupancy(device: np.void, launches: np.ndarray) -> Occupancy | None:
    """Theoretical occupancy of rows of ``launches`` on a device, a row of ``devices``. Returns None if a needed
    attribute of the device is 0, which means unknown."""
    warp_size = int(device["warp_size"])
    max_warps = int(device["max_warps_per_multiprocessor"])
    max_blocks = int(device["max_blocks_per_multiprocessor"])
    multiprocessors = int(device["multiprocessors"])
    registers_per_multiprocessor = int(device["registers_per_multiprocessor"])
    shared_per_multiprocessor = int(device["shared_per_multiprocessor"])
    if not (
        warp_size
        and max_warps
        and max_blocks
        and multiprocessors
        and registers_per_multiprocessor
    ):
        return None
    threads = volume(launches, "block").astype(np.int64)
    registers = launches["registers"].astype(np.int64)
    known = threads > 0
    warps = np.maximum(-(-threads // warp_size), 1)
    limit_warps = max_warps // warps

    per_warp = np.maximum(_round_up(registers * warp_size, _REGISTER_UNIT), 1)
    # Each scheduler has its own part of the register file, and a warp uses the registers of one part.
    resident = registers_per_multiprocessor // _SCHEDULERS // per_warp * _SCHEDULERS
    limit_registers = np.where(registers > 0, resident // warps, UNLIMITED)

    shared = launches["static_shared"].astype(np.int64) + launches["dynamic_shared"]
    unit = 128 if device["compute_major"] >= 8 else 256
    needed = _round_up(shared + int(device["shared_reserved_per_block"]), unit)
    limited = (needed > 0) & (shared_per_multiprocessor > 0)
    limit_shared = np.where(
        limited, shared_per_multiprocessor // np.maximum(needed, 1), UNLIMITED
    )

    blocks = np.minimum(limit_warps, max_blocks)
    for limit in (limit_registers, limit_shared):
        blocks = np.where(limit == UNLIMITED, blocks, np.minimum(blocks, limit))
    filled = blocks * multiprocessors
    return Occupancy(
        known=known,
        limit_blocks=np.full(len(threads), max_blocks),
        limit_warps=limit_warps,
        limit_registers=limit_registers,
        limit_shared=limit_shared,
        blocks=blocks,
        warps=blocks * warps,
        percent=100.0 * (blocks * warps) / max_warps,
        waves=np.where(
            blocks > 0, volume(launches, "grid") / np.maximum(filled, 1), 0.0
        ),
    )
