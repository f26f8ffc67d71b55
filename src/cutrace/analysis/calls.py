"""What CUDA runtime and driver API functions do, by name.

The rules use names only (docs/metrics.md), so a function of a later CUDA release counts like its family. Names are
compared without the suffixes of versions and of per-thread default streams.
"""

from __future__ import annotations

import re
from functools import lru_cache

#: The function name of work whose launching call was not recorded.
UNKNOWN_CALL = "(unknown call)"

_SUFFIXES = re.compile(r"(?:_v\d+|_pt[ds][sz])+$")
_GRAPH_LAUNCH = re.compile(r"(?:cuda|cu)GraphLaunch")
_WAIT = re.compile(r"(?:cuda|cu)[A-Z]\w*Synchronize")
_COPY = re.compile(r"(?:cuda|cu)Memcpy\w*")
# CUDA does not block on asynchronous copies, nor on copies that cannot involve host memory.
_NOT_WAITING = re.compile(r"Async|Peer|ArrayToArray|[AD]to[AD]")


@lru_cache(maxsize=4096)
def plain_name(name: str) -> str:
    """The name of an API function without suffixes: ``cudaLaunchKernel_ptsz_v7000`` is ``cudaLaunchKernel``."""
    return _SUFFIXES.sub("", name) or name


def launches_graph(name: str) -> bool:
    """Whether calls of this function launch a CUDA graph."""
    return _GRAPH_LAUNCH.fullmatch(plain_name(name)) is not None


def synchronizes(name: str) -> bool:
    """Whether calls of this function count as waits for the GPU: functions named ``...Synchronize`` and blocking
    copies."""
    name = plain_name(name)
    return bool(_WAIT.fullmatch(name) or (_COPY.fullmatch(name) and not _NOT_WAITING.search(name)))
