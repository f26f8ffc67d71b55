"""The kinds of CUDA runtime and driver API functions, by name.

The rules use names only (docs/internals/metrics.md). So a function of a later CUDA release has the kind of its family.
Names are compared without the suffixes of versions and of per-thread default streams.
"""

from __future__ import annotations

import re
from functools import lru_cache

#: The name of the function of work whose launching call was not recorded.
UNKNOWN_CALL = "(unknown call)"

_SUFFIXES = re.compile(r"(?:_v\d+|_pt[ds][sz])+$")
_GRAPH_LAUNCH = re.compile(r"(?:cuda|cu)GraphLaunch")
_WAIT = re.compile(r"(?:cuda|cu)[A-Z]\w*Synchronize")
_COPY = re.compile(r"(?:cuda|cu)Memcpy\w*")
_LOAD = re.compile(r"(?:cuda|cu)(?:Module|Library)Load\w*")
_VARIABLE = re.compile(r"(?:cuda|cu)(?:Module|Library)GetGlobal")
# CUDA does not block on asynchronous copies, and not on copies without host memory.
_NOT_WAITING = re.compile(r"Async|Peer|ArrayToArray|[AD]to[AD]")

#: The kinds of calls, as ``cutrace record --stacks`` names them. Here, calls that release memory have their own kind.
CALL_KINDS = ("launch", "copy", "sync", "alloc", "free", "other")
# The patterns of the names of each kind, after "cuda" or "cu". The collector has the same patterns.
_BEGINNINGS = {
    "launch": r"Launch|GraphLaunch",
    "copy": r"Memcpy|Memset|MemPrefetch",
    "sync": r"(?:Stream|Event|Device|Thread|Ctx|ExecutionCtx)Synchronize",
    "alloc": r"Malloc|HostAlloc|HostRegister|MemAlloc|MemHostAlloc|MemHostRegister|MemCreate|MemMap|MemPoolCreate",
    "free": r"Free|HostUnregister|MemFree|MemHostUnregister|MemRelease|MemUnmap|MemPoolDestroy|MemPoolTrimTo",
}
_OF_KIND = {
    kind: re.compile(f"_*cu(?:da)?(?:{names})") for kind, names in _BEGINNINGS.items()
}


@lru_cache(maxsize=4096)
def plain_name(name: str) -> str:
    """The name of an API function without suffixes: ``cudaLaunchKernel_ptsz_v7000`` is ``cudaLaunchKernel``."""
    return _SUFFIXES.sub("", name) or name


@lru_cache(maxsize=4096)
def call_kind(name: str) -> str:
    """The kind of calls of this function: one of :data:`CALL_KINDS`."""
    for kind, beginning in _OF_KIND.items():
        if beginning.match(name):
            return kind
    return "other"


def launches_graph(name: str) -> bool:
    """Whether calls of this function launch a CUDA graph."""
    return _GRAPH_LAUNCH.fullmatch(plain_name(name)) is not None


def loads_code(name: str) -> bool:
    """Whether calls of this function load a module or a library."""
    return _LOAD.fullmatch(plain_name(name)) is not None


def finds_variable(name: str) -> bool:
    """Whether calls of this function return the address of a module's variable."""
    return _VARIABLE.fullmatch(plain_name(name)) is not None


def synchronizes(name: str) -> bool:
    """Whether calls of this function count as waits for the GPU: functions named ``...Synchronize`` and blocking
    copies."""
    plain = plain_name(name)
    if _COPY.fullmatch(plain):
        return not _NOT_WAITING.search(plain)
    return _WAIT.fullmatch(plain) is not None
