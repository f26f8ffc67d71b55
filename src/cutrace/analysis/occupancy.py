"""Theoretical occupancy of a kernel launch, from its configuration and the facts of its device.

How many blocks of a launch fit on one multiprocessor at a time is limited by four things: the slots for blocks, the
slots for warps, the registers and the shared memory. The smallest limit wins. Real occupancy also depends on how
evenly the blocks run, which no launch configuration tells.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

#: Registers are given to a warp in units of this many, and warps are placed on this many schedulers.
_REGISTER_UNIT = 256
_SCHEDULERS = 4

#: What stands for no limit.
UNLIMITED = -1


@dataclass(frozen=True)
class Occupancy:
    """Blocks that fit on a multiprocessor by each limit, and what follows from the smallest: an entry for each launch.

    ``limit_registers`` and ``limit_shared`` are :data:`UNLIMITED` where a launch uses none of it, so that nothing
    limits. ``warps`` are resident on a multiprocessor at most, ``percent`` is their share of the multiprocessor's
    slots, ``waves`` how often the whole device is filled by the grid. ``known`` is False, and the rest means nothing,
    where a launch has no threads: that is how captures say that its configuration is not known.
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
    """How many blocks the ``grid``, or threads the ``block``, of each launch has."""
    x, y, z = (launches[f"{of}_{axis}"].astype(np.uint64) for axis in "xyz")
    return x * y * z


def occupancy(device: np.void, launches: np.ndarray) -> Occupancy | None:
    """Theoretical occupancy of rows of ``launches`` on a device, a row of ``devices``. Returns None when a fact of the
    device that is needed is 0, which is how captures say that it is not known."""
    warp_size, max_warps = int(device["warp_size"]), int(device["max_warps_per_multiprocessor"])
    max_blocks, multiprocessors = int(device["max_blocks_per_multiprocessor"]), int(device["multiprocessors"])
    registers_per_multiprocessor = int(device["registers_per_multiprocessor"])
    shared_per_multiprocessor = int(device["shared_per_multiprocessor"])
    if not (warp_size and max_warps and max_blocks and multiprocessors and registers_per_multiprocessor):
        return None
    threads, registers = volume(launches, "block").astype(np.int64), launches["registers"].astype(np.int64)
    known = threads > 0
    warps = np.maximum(-(-threads // warp_size), 1)
    limit_warps = max_warps // warps

    per_warp = np.maximum(_round_up(registers * warp_size, _REGISTER_UNIT), 1)
    # Each scheduler has its own part of the register file, and whole warps live in one part.
    resident = registers_per_multiprocessor // _SCHEDULERS // per_warp * _SCHEDULERS
    limit_registers = np.where(registers > 0, resident // warps, UNLIMITED)

    shared = launches["static_shared"].astype(np.int64) + launches["dynamic_shared"]
    unit = 128 if device["compute_major"] >= 8 else 256
    needed = _round_up(shared + int(device["shared_reserved_per_block"]), unit)
    limited = (needed > 0) & (shared_per_multiprocessor > 0)
    limit_shared = np.where(limited, shared_per_multiprocessor // np.maximum(needed, 1), UNLIMITED)

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
        waves=np.where(blocks > 0, volume(launches, "grid") / np.maximum(filled, 1), 0.0),
    )
