"""What the functions of the CUDA runtime and driver API do, by name.

The rules look at names alone, as docs/metrics.md says, so that a function of a CUDA release to come falls into the
class of its family. Names are compared without the suffixes of versions and of per-thread default streams.
"""

from __future__ import annotations

import re
from enum import Enum
from functools import lru_cache


class Call(Enum):
    """The class of an API function; each function is in one."""

    LAUNCH = "launch"
    GRAPH_LAUNCH = "graph launch"
    SYNCHRONIZE = "synchronize"
    COPY = "copy"
    FILL = "fill"
    ALLOCATE = "allocate"
    FREE = "free"
    OTHER = "other"


#: The function of what was launched by a call that was not recorded.
UNKNOWN_CALL = "(unknown call)"

_SUFFIXES = re.compile(r"(?:_v\d+|_pt[ds][sz])+$")

_RULES: tuple[tuple[Call, re.Pattern[str]], ...] = (
    (Call.GRAPH_LAUNCH, re.compile(r"(?:cuda|cu)GraphLaunch")),
    (Call.LAUNCH, re.compile(r"(?:__cuda|cuda|cu)Launch(?!HostFunc).*")),
    (Call.SYNCHRONIZE, re.compile(r"(?:cuda|cu)[A-Z]\w*Synchronize")),
    (Call.COPY, re.compile(r"(?:cuda|cu)Memcpy\w*")),
    (Call.FILL, re.compile(r"(?:cuda|cu)Memset\w*")),
    (Call.ALLOCATE, re.compile(r"cudaMalloc\w*|cudaHostAlloc|cuMem(?:Host)?Alloc\w*|cuMemCreate|cu\w*ArrayCreate")),
    (Call.FREE, re.compile(r"cudaFree\w*|cuMemFree\w*|cuMemRelease|cu\w*ArrayDestroy")),
)

# Copies that return at once, and those in which no host memory can take part: CUDA lets neither wait.
_NOT_WAITING = re.compile(r"Async|Peer|ArrayToArray|[AD]to[AD]")


@lru_cache(maxsize=4096)
def plain_name(name: str) -> str:
    """The name of an API function without suffixes: ``cudaLaunchKernel_ptsz_v7000`` is ``cudaLaunchKernel``."""
    return _SUFFIXES.sub("", name) or name


@lru_cache(maxsize=4096)
def classify(name: str) -> Call:
    """The class of an API function, with or without suffixes."""
    name = plain_name(name)
    return next((call for call, rule in _RULES if rule.fullmatch(name)), Call.OTHER)


@lru_cache(maxsize=4096)
def synchronizes(name: str) -> bool:
    """Whether a call of this function is counted as one that makes its thread wait for the GPU: the functions named
    ``...Synchronize`` and the blocking copies."""
    call = classify(name)
    return call is Call.SYNCHRONIZE or (call is Call.COPY and not _NOT_WAITING.search(plain_name(name)))
