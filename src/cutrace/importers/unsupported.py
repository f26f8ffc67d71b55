"""Files that no importer reads: their formats, and advice."""

from __future__ import annotations

import re
from typing import NoReturn

from ..errors import BadCapture
from ..runbin.blocks import MAGIC as CAPTURE
from .base import Import, SourceFile
from .chrome import without_mark
from .tables_sqlite import MAGIC, SqliteTables

_OF_NSYS = "is a report of Nsight Systems: export it with `nsys export --type sqlite`"
#: Endings of such reports.
_REPORTS_OF_NSYS = frozenset((".nsys-rep", ".qdrep"))

#: The format of a file with advice, by the first bytes of the file.
_KNOWN: tuple[tuple[bytes, str], ...] = (
    (b"NVIDIA Tegra Profiler Report", _OF_NSYS),
    (
        b"NVR\x00",
        "is a report of Nsight Compute, which has no timeline: record one with `cutrace record`",
    ),
    (
        b"<?xml",
        "is XML. A session of the Visual Profiler holds no data: open the database that nvprof -o wrote",
    ),
    (
        b"version https://git-lfs",
        "is a pointer to a file in Git LFS: fetch it with `git lfs pull`",
    ),
    (b"\x89HDF", "is HDF5: export the report with `nsys export --type sqlite`"),
    (b"PAR1", "is one table (Parquet): name the folder with all tables"),
    (b"ARROW1", "is one table (Arrow): name the folder with all tables"),
    (b"PK\x03\x04", "is a ZIP archive: unpack it first"),
    (b"7z\xbc\xaf\x27\x1c", "is a 7-Zip archive: unpack it first"),
    (b"Rar!\x1a\x07", "is a RAR archive: unpack it first"),
    (b"BZh", "is compressed with bzip2: unpack it first"),
    (b"\xfd7zXZ\x00", "is compressed with xz: unpack it first"),
    (b"\x04\x22\x4d\x18", "is compressed with LZ4: unpack it first"),
    # This mark starts with that of UTF-16.
    (b"\xff\xfe\x00\x00", "is text in UTF-32: convert it to UTF-8"),
    (b"\xff\xfe", "is text in UTF-16: convert it to UTF-8"),
    (b"\xfe\xff", "is text in UTF-16: convert it to UTF-8"),
    (b"<", "is an HTML page: export the trace as JSON"),
    (
        b"# tracer:",
        "is a kernel trace (ftrace, systrace) without data of CUDA: open it in ui.perfetto.dev",
    ),
    (
        b"{",
        "is JSON without trace events: give it a list of them under the key traceEvents",
    ),
    (b"[", "is JSON without trace events, which are objects with a phase (ph)"),
)
#: The same, by a pattern.
_PATTERNS: tuple[tuple[re.Pattern[bytes], str], ...] = (
    # A stack may start with a bracket, like JSON.
    (
        re.compile(rb"[^\n]*[^\s,] \d+\r?\n"),
        "has folded stacks, without times: open the trace that they were made from",
    ),
    # The file's first byte is white space, which the head lacks.
    (
        re.compile(rb".{1,7}\x12./(?:host|device):", re.DOTALL),
        "is a profile of XLA (xplane.pb): open the .trace.json.gz that JAX and TensorFlow write beside it",
    ),
    (
        re.compile(rb'\{\s*"rocprofiler-sdk-tool"'),
        "has records of rocprofv3: write a trace for Perfetto with its option --output-format pftrace",
    ),
    (
        re.compile(rb'\{.*"(?:Cuda|Nvtx|TraceProcess)Event"\s*:\s*\{', re.DOTALL),
        "has JSON of Nsight Systems: export the report with `nsys export --type sqlite`",
    ),
    (
        re.compile(rb'\{\s*"schema"\s*:\s*"[^"]*chakra'),
        "is an execution trace of PyTorch, without times on the GPU: open the trace that torch.profiler wrote",
    ),
    (
        re.compile(rb'\[\s*\{\s*"(?:children|frame)"\s*:'),
        'has sums of Proton or Hatchet, without a timeline: make a trace with proton.start(..., data="trace")',
    ),
)
# Bytes that no text has: control characters, and bytes that UTF-8 does not use.
_NO_TEXT = re.compile(rb"[\x00-\x08\x0e-\x1a\x1c-\x1f\x7f\xc0\xc1\xf5-\xff]")


class Unsupported:
    """Recognizes files that no importer reads, and raises an error that names the format."""

    name = "unsupported"
    description = "a file that cutrace cannot read"

    def recognizes(self, source: SourceFile) -> bool:
        return (
            source.head.startswith(MAGIC)
            or _is_parquet_of_cutrace(source)
            or bool(_explanation(source))
        )

    def read(self, source: SourceFile, out: Import) -> NoReturn:
        if _is_parquet_of_cutrace(source):
            raise BadCapture(
                f"{source.path} is a folder of Parquet files, which cutrace writes for other programs: "
                "open the capture that it was made from."
            )
        raise BadCapture(f"{source.path} {_explanation(source) or _database(source)}.")


def _is_parquet_of_cutrace(source: SourceFile) -> bool:
    return (source.path / "processes.parquet").is_file()


def _explanation(source: SourceFile) -> str:
    head = without_mark(source.head)
    if source.path.suffix in _REPORTS_OF_NSYS:
        return _OF_NSYS
    if source.packed and not source.head:
        return (
            f"is compressed with {source.packed}, and empty or damaged: create it again"
        )
    if source.packed and source.head.startswith(CAPTURE):
        return "is a compressed capture: unpack it, or pipe it to this command and name - as the file"
    if source.head[257:262] == b"ustar":
        return "is a TAR archive: unpack it, and name a trace inside"
    of_pattern = (text for pattern, text in _PATTERNS if pattern.match(head))
    known = next(of_pattern, "") or next(
        (text for begin, text in _KNOWN if head.startswith(begin)), ""
    )
    if not known and head and not _NO_TEXT.search(head):
        return "is text, not a trace: name a capture, or a trace of a tool that cutrace reads"
    return known


def _database(source: SourceFile) -> str:
    if source.packed:
        return "is a compressed database: unpack it first"
    with SqliteTables(source.path) as tables:
        if tables.damage or not tables.names:
            return "is a database without a readable table. Export it again"
    return "is a database of neither Nsight Systems nor nvprof"


UNSUPPORTED = Unsupported()
