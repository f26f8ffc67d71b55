"""Files at URLs, which fsspec reads: ``s3://``, ``gs://``, ``hf://`` and others.

Reading a capture needs random access, so a worker copies it to a temporary file first.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from glob import glob
from hashlib import blake2b
from importlib import import_module
from pathlib import Path
from typing import Any
from urllib.parse import unquote
from urllib.request import url2pathname

from ...errors import CutraceError
from ...loading import StrPath
from ...outputs import scratch, size_of

_MAGIC = "*?["


def is_url(source: StrPath) -> bool:
    """Whether a source is a URL, not a path."""
    return isinstance(source, str) and "://" in source


def named(sources: Sequence[StrPath]) -> list[str]:
    """The absolute paths and the URLs of sources. A URL with ``*``, ``?`` or ``[`` names all files that match it.

    Raises :class:`CutraceError` if a URL cannot be read or names nothing.
    """
    names = []
    for source in sources:
        if isinstance(source, str) and source.startswith("file://"):
            names += _local(source)
        elif not is_url(source):
            names.append(str(Path(source).absolute()))
        elif any(sign in str(source) for sign in _MAGIC):
            names += _matching(str(source))
        else:
            _opened(str(source))
            names.append(str(source))
    return names


def _local(url: str) -> list[str]:
    """The path in a ``file://`` URL, or the paths of the files that match it."""
    place = url.removeprefix("file://")
    _, _, path = place.partition("/")
    path = url2pathname(f"/{path}")
    found: list[str] = []
    if any(sign in url for sign in _MAGIC):
        found = sorted(glob(path))  # noqa: PTH207 (folders may have signs, too)
    # A pattern that matches nothing is an error like a file that is absent.
    return found or [path]


def identity(source: str) -> str:
    """A key for a file, equal for all names of the file."""
    if is_url(source):
        return source
    return os.path.realpath(source)


def stamp(source: str) -> tuple[int, int]:
    """Return the size (bytes) and the modification time (ns) of a file or folder. For a URL, the second number is not a
    time but changes with the file. Both are 0 if there is no file."""
    try:
        if not is_url(source):
            path = Path(source)
            return size_of(path), path.stat().st_mtime_ns
        files, path_there = _opened(source)
        info = files.info(path_there)
        digest = blake2b(files.ukey(path_there).encode(), digest_size=7)
        return int(info.get("size") or 0), int.from_bytes(digest.digest(), "big")
    except Exception as error:
        # Packages for object stores raise errors of other classes. The worker reports them.
        if is_url(source) or isinstance(error, OSError):
            return 0, 0
        raise


@contextmanager
def local(source: str) -> Iterator[str]:
    """Yield the path of a file, or of a temporary copy for a URL. Errors name the URL."""
    if not is_url(source):
        yield source
        return
    with scratch() as folder:
        files, path = _opened(source)
        copy = folder / Path(unquote(path)).name
        try:
            files.get_file(path, str(copy))
        except Exception as error:
            raise _unreadable(source, error) from None
        try:
            yield str(copy)
        except CutraceError as error:
            error.args = (str(error).replace(str(copy), source),)
            raise


def _matching(pattern: str) -> list[str]:
    files, path = _opened(pattern)
    try:
        found = sorted(files.glob(path))
    except Exception as error:
        raise _unreadable(pattern, error) from None
    if not found:
        raise CutraceError(
            f"nothing matches {pattern}: `fsspec.filesystem(...).ls` lists what is there"
        )
    return [files.unstrip_protocol(one) for one in found]


def _opened(url: str) -> tuple[Any, str]:
    """The file system of a URL, and the path of the URL in it."""
    try:
        core: Any = import_module("fsspec.core")
        files, path = core.url_to_fs(url)
    except ImportError as error:
        protocol, _, _ = url.partition("://")
        raise CutraceError(
            f"{url} needs fsspec and its package for {protocol} ({error}): install them, for example with "
            "`pip install fsspec s3fs` for s3"
        ) from None
    except Exception as error:
        raise _unreadable(url, error) from None
    return files, path


def _unreadable(url: str, error: Exception) -> CutraceError:
    reason = str(error) or type(error).__name__
    return CutraceError(
        f"cannot read {url}: {reason}. Check its name and your credentials"
    )
