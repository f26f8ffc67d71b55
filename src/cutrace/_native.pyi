from collections.abc import Sequence

import numpy as np

VERSION: str

def crc32c(data: object) -> int: ...
def transposed(data: object, back: bool = False) -> bytes: ...
def exceeds(column: np.ndarray, most: int) -> bool: ...
def any_outside(starts: np.ndarray, ends: np.ndarray, latest: int) -> bool: ...
def demangle(name: str) -> str: ...
def is_condition(text: str) -> bool: ...

class Blobs:
    def __init__(self) -> None: ...
    def add(self, piece: bytes) -> int: ...
    def __len__(self) -> int: ...

class Program:
    def __init__(
        self, ops: Sequence[tuple[int, bytes, int, int, bool, bool, int, int, bytes]]
    ) -> None: ...

def encode(
    out: np.ndarray,
    at: int,
    streams: Sequence[tuple[Program, Sequence[np.ndarray | Blobs]]],
    offsets: np.ndarray,
    pieces: np.ndarray,
    lasts: np.ndarray,
    first_event: int = 0,
    which: np.ndarray | None = None,
    rows: np.ndarray | None = None,
) -> tuple[int, int]: ...
def encode_rows(
    stream: tuple[Program, Sequence[np.ndarray | Blobs]], rows: int
) -> bytes: ...
def encode_pieces(
    blobs: Blobs, stream: tuple[Program, Sequence[np.ndarray | Blobs]], rows: int
) -> None: ...

class Keys:
    def __init__(self, width: int) -> None: ...
    def ids(self, columns: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray]: ...
    def __len__(self) -> int: ...

class Submissions:
    def __init__(self, base: int, near: int = 0) -> None: ...
    def assign(self, correlations: np.ndarray) -> np.ndarray: ...
    def lists(self, correlations: np.ndarray) -> tuple[np.ndarray, np.ndarray]: ...
    @property
    def end(self) -> int: ...

class Lanes:
    def __init__(self) -> None: ...
    def add(
        self,
        stream: int,
        groups: np.ndarray,
        starts: np.ndarray,
        ends: np.ndarray | None,
        from_: int = 0,
        until: int = ...,
        group_of: np.ndarray | None = None,
        inside: np.ndarray | None = None,
        levels: np.ndarray | None = None,
        inner_first: bool = False,
        takes_level: bool = True,
    ) -> None: ...
    def close(self, until: int) -> None: ...
    def groups(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, int]: ...
    def instant_lanes(self) -> np.ndarray: ...
    def take(
        self, joins: bytes, most_joined: int, tracks: np.ndarray
    ) -> tuple[
        tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray],
        tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray],
    ]: ...
    def spilled(self) -> np.ndarray: ...
    @property
    def outside(self) -> int: ...

class PerfettoReader:
    def __init__(self, events: EventScanner) -> None: ...
    def read(
        self, data: object, at: int, most: int
    ) -> tuple[int, list[tuple[bool, bytes]]]: ...
    def finish(self) -> None: ...
    @staticmethod
    def begins(head: object) -> bool: ...
    def losses(self) -> list[tuple[str, str, int]]: ...
    @property
    def left(self) -> list[tuple[str, int, int]]: ...
    @property
    def added(self) -> int: ...
    @property
    def of_cutrace(self) -> bool: ...
    @property
    def carried(self) -> list[bytes]: ...
    @property
    def of_torch(self) -> bool: ...
    @property
    def devices(self) -> list[bytes]: ...
    @property
    def gpu_processes(self) -> list[int]: ...
    @property
    def host(self) -> int | None: ...
    @property
    def realtime(self) -> int | None: ...

class EventScanner:
    def __init__(
        self,
        rules: list[tuple[str, str | None, str | None, list[tuple[str, int]], bool]],
        keys: list[tuple[str, int]],
        wrap: str,
        largest: int = ...,
    ) -> None: ...
    def feed(self, data: object) -> None: ...
    def finish(self) -> None: ...
    def take(
        self,
    ) -> list[
        tuple[
            np.ndarray,
            np.ndarray,
            np.ndarray,
            np.ndarray,
            np.ndarray,
            np.ndarray,
            np.ndarray,
            np.ndarray,
            list[tuple[np.ndarray, np.ndarray]],
            tuple[np.ndarray, np.ndarray, np.ndarray],
        ]
    ]: ...
    def text_id(self, text: bytes) -> int: ...
    def texts(self, ids: np.ndarray) -> list[bytes]: ...
    def threads(
        self, first: int = 0
    ) -> list[tuple[int | bytes | None, int | bytes | None]]: ...
    @property
    def pending(self) -> int: ...
    @property
    def others(self) -> list[tuple[bytes, bytes]]: ...
    @property
    def has_array(self) -> bool: ...
    @property
    def problems(self) -> dict[str, int]: ...
    @property
    def ended(self) -> str: ...
    @property
    def understood(self) -> int: ...
    @property
    def bytes(self) -> int: ...

class Calls:
    def __init__(self, bits: int) -> None: ...
    def add(
        self,
        correlations: np.ndarray,
        starts: np.ndarray,
        threads: np.ndarray,
        ends: np.ndarray | None = None,
        functions: np.ndarray | None = None,
        owners: np.ndarray | None = None,
        how: np.ndarray | None = None,
    ) -> None: ...
    def find(self, correlations: np.ndarray) -> tuple[np.ndarray, ...]: ...
    def launch(
        self,
        parts: Sequence[tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]],
        levels: Levels,
        series: np.ndarray,
    ) -> None: ...
    def shares(self) -> list[tuple[int, int]]: ...

class Projections:
    def __init__(self, kept: int) -> None: ...
    def add(
        self,
        homes: np.ndarray,
        starts: np.ndarray,
        ends: np.ndarray,
        numbers: np.ndarray,
    ) -> None: ...
    def launch(
        self,
        homes: np.ndarray,
        called: np.ndarray,
        queues: np.ndarray,
        starts: np.ndarray,
        ends: np.ndarray,
        kinds: np.ndarray,
        pairs: bool = False,
    ) -> tuple[np.ndarray, np.ndarray] | None: ...
    def take(self, until: int | None) -> tuple[int, tuple[np.ndarray, ...]]: ...

class RangeThreads:
    OWN: int
    ADOPTED: int
    SEVERAL: int
    NONE: int
    def __init__(self, adopts: bool) -> None: ...
    def add(
        self, threads: np.ndarray, starts: np.ndarray, ends: np.ndarray
    ) -> None: ...
    def find(
        self, threads: np.ndarray, times: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]: ...

class Levels:
    MOST: int
    def __init__(
        self, first: int, last: int, bits: int, exact: int, means: bool = True
    ) -> None: ...
    def add(
        self,
        keys: np.ndarray,
        series: np.ndarray,
        factors: np.ndarray,
        times: np.ndarray,
        amounts: np.ndarray,
        sums: tuple[Levels, np.ndarray] | None = None,
    ) -> None: ...
    def add_stretches(
        self,
        keys: np.ndarray,
        series: np.ndarray,
        begins: np.ndarray,
        ends: np.ndarray,
        amounts: np.ndarray,
    ) -> None: ...
    def values(
        self, series: int
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, bool]: ...

class MemoryTotals:
    def __init__(self) -> None: ...
    def add(
        self, groups: np.ndarray, operations: np.ndarray, sizes: np.ndarray
    ) -> None: ...
    def rows(self) -> list[tuple[int, int, int, int, int, int]]: ...

class Spreads:
    def __init__(self) -> None: ...
    def add(self, groups: np.ndarray, numbers: np.ndarray) -> None: ...
    def __len__(self) -> int: ...
    def rows(self) -> list[tuple[int, int, int, float, float, float, int, int]]: ...

class InnerTimes:
    def __init__(self) -> None: ...
    def add(
        self,
        threads: np.ndarray,
        starts: np.ndarray,
        ends: np.ndarray,
        groups: np.ndarray,
        levels: np.ndarray | None = None,
    ) -> None: ...
    def finish(self) -> None: ...
    def times(self) -> np.ndarray: ...

class PathTimes:
    WORK: int
    def __init__(self) -> None: ...
    def add_ranges(
        self,
        threads: np.ndarray,
        starts: np.ndarray,
        ends: np.ndarray,
        labels: np.ndarray,
        domains: np.ndarray | None = None,
        levels: np.ndarray | None = None,
    ) -> None: ...
    def add_work(
        self,
        threads: np.ndarray,
        called: np.ndarray,
        known: np.ndarray,
        labels: np.ndarray,
        times: np.ndarray,
        created: np.ndarray | None = None,
        creations: Sequence[Sequence[int]] = (),
        owners: np.ndarray | None = None,
        adopters: Sequence[Sequence[tuple[int, Sequence[int]]]] = (),
    ) -> None: ...
    def forget(self, until: int) -> None: ...
    def finish(self, end: int = ...) -> None: ...
    def nodes(self) -> list[tuple[int, int, int, int, int]]: ...

class BusyParts:
    def __init__(self, first: int, last: int, parts: int) -> None: ...
    def add(self, groups: np.ndarray, starts: np.ndarray, ends: np.ndarray) -> None: ...
    @property
    def width(self) -> int: ...
    def busy(self) -> np.ndarray: ...

class StreamTimes:
    def __init__(
        self, consecutive: int, release: int, full: int, longest: int
    ) -> None: ...
    def add(
        self,
        starts: np.ndarray,
        ends: np.ndarray,
        tables: np.ndarray,
        streams: np.ndarray,
        correlations: np.ndarray,
        known: np.ndarray,
        called: np.ndarray,
        returned: np.ndarray,
    ) -> tuple[np.ndarray, np.ndarray]: ...
    def uses(
        self,
    ) -> list[
        tuple[list[int], int, int, int, list[int], int, tuple[int, int], int, int]
    ]: ...

class GpuTimes:
    def __init__(self) -> None: ...
    def add(
        self,
        devices: np.ndarray,
        starts: np.ndarray,
        ends: np.ndarray,
        tables: np.ndarray,
        kinds: np.ndarray,
    ) -> None: ...
    def uses(self) -> list[tuple[int, list[int], list[int], int, int, list[int]]]: ...
