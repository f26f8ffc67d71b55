"""Theoretical occupancy of a kernel launch, from its configuration and the facts of its device.

How many blocks of a launch fit on one multiprocessor at a time is limited by four things: the slots for blocks, the
slots for warps, the registers and the shared memory. The smallest limit wins. Real occupancy also depends on how
evenly the blocks run, which no launch configuration tells.
"""

from __future__ import annotations

from dataclasses import dataclass

#: Registers are given to a warp in units of this many, and warps are placed on this many schedulers.
_REGISTER_UNIT = 256
_SCHEDULERS = 4


@dataclass(frozen=True)
class Occupancy:
    """Blocks that fit on a multiprocessor by each limit, and what follows from the smallest.

    ``limit_registers`` and ``limit_shared`` are None when the launch uses none of it, so that nothing limits.
    ``warps`` are resident on a multiprocessor at most, ``percent`` is their share of the multiprocessor's slots,
    ``waves`` how often the whole device is filled by the grid.
    """

    limit_blocks: int
    limit_warps: int
    limit_registers: int | None
    limit_shared: int | None
    blocks: int
    warps: int
    percent: float
    waves: float


def _round_up(value: int, unit: int) -> int:
    return -(-value // unit) * unit


def occupancy(
    *,
    threads: int,
    registers: int,
    shared: int,
    grid_blocks: int,
    compute_major: int,
    multiprocessors: int,
    warp_size: int,
    max_warps: int,
    max_blocks: int,
    registers_per_multiprocessor: int,
    shared_per_multiprocessor: int,
    shared_reserved: int,
) -> Occupancy | None:
    """Theoretical occupancy of a launch.

    ``threads`` and ``shared`` (bytes, static and dynamic) are those of a block, ``registers`` those of a thread;
    ``shared_reserved`` is the driver's share of a block. The other facts are those of the device, a multiprocessor
    at a time. Returns None when a fact that is needed is 0, which is how captures say that it is not known.
    """
    if not (threads and warp_size and max_warps and max_blocks and multiprocessors and registers_per_multiprocessor):
        return None
    warps = -(-threads // warp_size)
    limit_warps = max_warps // warps

    limit_registers = None
    if registers:
        per_warp = _round_up(registers * warp_size, _REGISTER_UNIT)
        # Each scheduler has its own part of the register file, and whole warps live in one part.
        resident = registers_per_multiprocessor // _SCHEDULERS // per_warp * _SCHEDULERS
        limit_registers = resident // warps

    limit_shared = None
    needed = shared + shared_reserved
    if needed and shared_per_multiprocessor:
        limit_shared = shared_per_multiprocessor // _round_up(needed, 128 if compute_major >= 8 else 256)

    limits = [limit for limit in (max_blocks, limit_warps, limit_registers, limit_shared) if limit is not None]
    blocks = min(limits)
    resident_warps = blocks * warps
    return Occupancy(
        limit_blocks=max_blocks,
        limit_warps=limit_warps,
        limit_registers=limit_registers,
        limit_shared=limit_shared,
        blocks=blocks,
        warps=resident_warps,
        percent=100.0 * resident_warps / max_warps,
        waves=grid_blocks / (blocks * multiprocessors) if blocks else 0.0,
    )
