"""Writing files atomically: a destination is checked before work is done for it, and a file is complete or absent.

All outputs get their mode here, by the umask.
"""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from .errors import CutraceError

_CHUNK = 1 << 20


class Unwritable(CutraceError):
    """The system refuses to write ``path``. ``reason`` is the system's message."""

    def __init__(self, path: Path, reason: str | None) -> None:
        super().__init__(
            f"cannot write {path}: {reason}. Choose another name or place."
        )
        self.path = path
        self.reason = reason


def check_output(
    path: Path,
    sources: Iterable[str | os.PathLike[str]],
    *,
    folder: bool = False,
    endings: Sequence[str] = (),
) -> None:
    """Raise :class:`CutraceError` when no file (with ``folder``, no folder) can be written or replaced at ``path``,
    when the name ends in none of ``endings``, or when the output would replace one of the ``sources``. The sources are
    all files and folders that the output is made of."""
    if endings and path.suffix not in endings:
        *others, last = endings
        either = f"{', '.join(others)} or {last}" if others else last
        raise CutraceError(
            f"cannot tell the format of {path}: write a name that ends in {either}"
        )
    try:
        target = target_of(path)
        occupied = target.exists() and not (
            target.is_dir() if folder else target.is_file()
        )
    except OSError as error:
        raise unwritable(path, error) from None
    if occupied:
        raise CutraceError(
            f"cannot write {path}: it is not a {'folder' if folder else 'file'}. Choose another name."
        )
    if path.parent.exists() and not path.parent.is_dir():
        raise CutraceError(
            f"cannot write {path}: {path.parent} is not a folder. Choose another place."
        )
    if not path.parent.is_dir():
        raise CutraceError(
            f"cannot write {path}: the folder {path.parent} does not exist. Create it first."
        )
    if not os.access(path.parent, os.W_OK | os.X_OK):
        raise CutraceError(
            f"cannot write {path}: no permission to write into its folder. Choose another place."
        )
    keep_sources([path], sources)


def keep_sources(
    paths: Sequence[Path],
    sources: Iterable[str | os.PathLike[str]],
) -> None:
    """Raise :class:`CutraceError` when writing one of ``paths`` would replace a source, or put a file into a source
    that is a folder."""
    places = [(path, target_of(path), path.exists()) for path in paths]
    for source in map(Path, sources):
        other = Path(os.path.realpath(source))
        for path, whole, exists in places:
            same = exists and source.exists() and path.samefile(source)
            if same or other in whole.parents or whole in other.parents:
                raise CutraceError(
                    f"cannot write {path}: {source} is an input. Choose another name."
                )


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield the name of a file or folder to write, in a private folder beside ``path``. On success it becomes ``path``
    in one step, with the mode that the umask allows. On failure it is removed. If ``path`` is a link, its target is
    replaced.

    Raises :class:`CutraceError` when ``path`` cannot be written; errors name ``path``, or the target of the link.
    """
    try:
        target = target_of(path) if path.is_symlink() else path
        with tempfile.TemporaryDirectory(
            prefix=f".{target.name[:100]}.", dir=target.parent
        ) as folder:
            # Exporters choose the format by the ending of the name.
            temporary = Path(folder, path.name.lower())
            try:
                yield temporary
            except CutraceError as error:
                error.args = (str(error).replace(str(temporary), str(path)),)
                raise
            if temporary.is_dir() and target.is_dir():
                # A folder is not replaced in one step: the old folder goes into the temporary folder first.
                target.rename(Path(folder, f"{path.name}.old"))
            publish(temporary, target)
    except OSError as error:
        raise unwritable(path, error) from None


def target_of(path: Path) -> Path:
    """Return the absolute path that ``path`` leads to through all links. Raises :class:`CutraceError` when the links
    form a loop."""
    target = Path(os.path.realpath(path))
    if target.is_symlink():
        raise Unwritable(path, os.strerror(errno.ELOOP))
    return target


def write_pieces(path: Path, pieces: Iterable[str]) -> None:
    """Write a string, given in pieces, by :func:`replacing`. Characters that UTF-8 cannot hold are escaped."""
    with (
        replacing(path) as temporary,
        temporary.open(
            "w", encoding="utf-8", errors="backslashreplace", newline=""
        ) as file,
    ):
        file.writelines(pieces)


def write_text(path: Path, text: str) -> None:
    """Write a text file, with its folders."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise unwritable(path, error) from None
    write_pieces(path, [text])


def publish(written: Path, path: Path) -> None:
    """Give a complete file the name ``path``, on the same file system, and the mode that the umask allows.

    Raises :class:`CutraceError` when that is impossible; the file then keeps its name.
    """
    try:
        _set_modes(written)
        written.replace(path)
    except OSError as error:
        raise unwritable(path, error) from None


def _set_modes(written: Path) -> None:
    mode = mode_of_new_files(written.parent)
    folder_mode = mode | (mode & 0o444) >> 2
    for path in (written, *written.rglob("*")):
        path.chmod(folder_mode if path.is_dir() else mode)


def mode_of_new_files(folder: Path) -> int:
    """Return the mode that the umask gives a new file, for example 0o644. ``folder`` must be writable."""
    # Only a new file shows the umask without changing it for all threads.
    probe = folder / f".{os.urandom(8).hex()}.mode"
    os.close(os.open(probe, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666))
    mode = probe.stat().st_mode & 0o666
    probe.unlink()
    return mode


def unwritable(path: Path, error: OSError) -> Unwritable:
    """Return the error for a ``path`` that the system refuses to write."""
    return Unwritable(path, error.strerror)


@contextmanager
def scratch() -> Iterator[Path]:
    """Yield a folder for temporary files, removed at the end. A :class:`CutraceError` for a file in it names TMPDIR."""
    try:
        folder = tempfile.TemporaryDirectory(prefix="cutrace.")
    except OSError as error:
        raise no_room(error.strerror) from None
    with folder as name:
        try:
            yield Path(name)
        except Unwritable as error:
            if Path(name) in error.path.parents:
                raise no_room(error.reason) from None
            raise


def no_room(reason: str | None) -> CutraceError:
    """Return the error for a temporary file that cannot be written."""
    try:
        place = f" in {tempfile.gettempdir()}"
    except OSError:  # No folder is usable.
        place = ""
    return CutraceError(
        f"cannot write temporary files{place}: {reason}. Set TMPDIR to a folder with room."
    )


def size_of(path: Path) -> int:
    """Return the size of a file, or of the files in a folder, in bytes."""
    if path.is_dir():
        return sum(p.stat().st_size for p in path.rglob("*"))
    return path.stat().st_size


def concatenate(parts: Iterable[Path], whole: BinaryIO) -> None:
    """Append files to an open file. Concatenated captures are a capture."""
    for path in parts:
        with path.open("rb") as part:
            shutil.copyfileobj(part, whole, _CHUNK)


def open_to_read(path: Path) -> int:
    """Open a file and return its descriptor. Opening a pipe does not wait for a writer."""
    return os.open(
        path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
    )


def read_at(file: int, size: int, offset: int) -> bytes:
    """Read up to ``size`` bytes from ``offset``. Several threads may read one file."""
    if hasattr(os, "pread"):
        return os.pread(file, size, offset)
    with _ONE_POSITION:  # Windows has no pread.
        os.lseek(file, offset, os.SEEK_SET)
        return os.read(file, size)


_ONE_POSITION = threading.Lock()


def available_cores() -> int:
    """The number of cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
