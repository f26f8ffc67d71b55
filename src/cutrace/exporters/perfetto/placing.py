"""The places of the tracks of a process: its groups, and the order of tracks by use inside a group.

Viewers sort the tracks and groups directly below a process by name. The names of groups are chosen so that the work of
GPUs comes first, then tracks of programs and sources, then memory, then waits and the time of recording. Viewers show
the queues of GPU work in their own group. So the ranges on streams are in a group beside the group of the queues; see
:func:`beside_stream`.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from typing import Any, NamedTuple

from .descriptors import Descriptors

#: Value of TrackDescriptor.ChildTracksOrdering: by ``sibling_order_rank``.
BY_RANK = 3

#: The rank after all streams of a group.
_BEHIND_STREAMS = 1 << 30


class BesideStream(IntEnum):
    """The tracks of one stream, in their order."""

    RANGES = 0
    GRAPH_RANGES = 1
    ANNOTATIONS = 2
    LAUNCH_QUEUE = 3


class TrackGroup(NamedTuple):
    """A group of tracks of a process."""

    name: str
    description: str


#: The place of a track: its group under the key ``group``, and its rank in the group as a field of TrackDescriptor.
Place = Mapping[str, Any]

_ENVIRONMENT = TrackGroup(
    "environment", "Readings of GPUs as CUPTI packs them, and what limits their clocks"
)
_MEMORY = TrackGroup("memory", "Memory in use, allocations and migrations")
_COSTS = TrackGroup(
    "overhead and synchronization",
    "Time of recording and of compilation, and waits for the GPU",
)


def in_environment(rank: int) -> Place:
    return _place(_ENVIRONMENT, rank)


def in_memory(rank: int) -> Place:
    return _place(_MEMORY, rank)


def among_costs(rank: int) -> Place:
    return _place(_COSTS, rank)


def beside_stream(
    descriptors: Descriptors,
    process: int,
    queue: tuple[int, int, int],
    which: BesideStream,
) -> Place:
    """A track about a stream, given its device, context and id. Streams are in the order of their first work."""
    number, _ = descriptors.devices.queue(process, *queue)
    rank = number * len(BesideStream) + which
    return _place(_of_gpu(queue[0]), rank)


def behind_streams(device: int) -> Place:
    """A track about a device."""
    return _place(_of_gpu(device), _BEHIND_STREAMS)


def _of_gpu(device: int) -> TrackGroup:
    return TrackGroup(
        f"GPU {device}: ranges and queues",
        "The NVTX ranges and the launch queue of each stream",
    )


def _place(group: TrackGroup, rank: int) -> Place:
    return {"group": group, "sibling_order_rank": rank}
