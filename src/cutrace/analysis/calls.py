"""The classes of CUDA runtime and driver API functions, by name.

The rules use names only (docs/metrics.md), so a function of a later CUDA release gets the class of its family. Names
are compared without the suffixes of versions and of per-thread default streams.
"""

from __future__ import annotations

import re
from enum import Enum
from functools import lru_cache


class CallClass(Enum):
    """The class of an API function. Each function has one class."""

    LAUNCH = "launch"
    GRAPH_LAUNCH = "graph launch"
    SYNCHRONIZE = "synchronize"
    COPY = "copy"
    FILL = "fill"
    ALLOCATE = "allocate"
    FREE = "free"
    OTHER = "other"


#: The function name of work whose launching call was not recorded.
UNKNOWN_CALL = "(unknown call)"

_SUFFIXES = re.compile(r"(?:_v\d+|_pt[ds][sz])+$")

_RULES: tuple[tuple[CallClass, re.Pattern[str]], ...] = (
    (CallClass.GRAPH_LAUNCH, re.compile(r"(?:cuda|cu)GraphLaunch")),
    (CallClass.LAUNCH, re.compile(r"(?:__cuda|cuda|cu)Launch(?!HostFunc).*")),
    (CallClass.SYNCHRONIZE, re.compile(r"(?:cuda|cu)[A-Z]\w*Synchronize")),
    (CallClass.COPY, re.compile(r"(?:cuda|cu)Memcpy\w*")),
    (CallClass.FILL, re.compile(r"(?:cuda|cu)Memset\w*")),
    (
        CallClass.ALLOCATE,
        re.compile(r"cudaMalloc\w*|cudaHostAlloc|cuMem(?:Host)?Alloc\w*|cuMemCreate|cu\w*ArrayCreate"),
    ),
    (CallClass.FREE, re.compile(r"cudaFree\w*|cuMemFree\w*|cuMemRelease|cu\w*ArrayDestroy")),
)

# CUDA does not block on asynchronous copies, nor on copies that cannot involve host memory.
_NOT_WAITING = re.compile(r"Async|Peer|ArrayToArray|[AD]to[AD]")


@lru_cache(maxsize=4096)
def plain_name(name: str) -> str:
    """The name of an API function without suffixes: ``cudaLaunchKernel_ptsz_v7000`` is ``cudaLaunchKernel``."""
    return _SUFFIXES.sub("", name) or name


@lru_cache(maxsize=4096)
def classify(name: str) -> CallClass:
    """The class of an API function, with or without suffixes."""
    name = plain_name(name)
    return next((call for call, rule in _RULES if rule.fullmatch(name)), CallClass.OTHER)


@lru_cache(maxsize=4096)
def synchronizes(name: str) -> bool:
    """Whether calls of this function count as waits for the GPU: functions named ``...Synchronize`` and blocking
    copies."""
    call = classify(name)
    return call is CallClass.SYNCHRONIZE or (call is CallClass.COPY and not _NOT_WAITING.search(plain_name(name)))
