"""The folder of a user for the files that processes of cutrace share: sockets of standby, locks of GPUs.

``native/common/private_folder.h`` has the rule.
"""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

_TEMPORARY = Path("/tmp")


def existing_folders() -> list[Path]:
    """The folders that this user's processes may have used, in the order of the rule."""
    candidates = dict.fromkeys((*_named_folders(), *_random_folders()))
    return [folder for folder in candidates if _is_private(folder)]


def usable_folders() -> Iterator[Path]:
    """The folders that this user may use, in the order of the rule. Each is created when the iterator reaches it.
    Raises OSError when the last one cannot be created."""
    for folder in _named_folders():
        with suppress(OSError):
            folder.mkdir(mode=0o700)
        if _is_private(folder):
            yield folder
    yield from filter(_is_private, _random_folders())
    yield Path(tempfile.mkdtemp(prefix=_prefix(), dir=_TEMPORARY))


def _named_folders() -> list[Path]:
    uid = os.geteuid()
    runtime = os.environ.get("XDG_RUNTIME_DIR", "")
    folders = [Path(runtime)] if runtime.startswith("/") else []
    folders.append(Path(f"/run/user/{uid}"))
    # If root creates its folder inside another user's folder, that user cannot use it.
    named = [folder / "cutrace" for folder in folders if _belongs_to_user(folder)]
    return [*named, _TEMPORARY / f"cutrace-{uid}"]


def _random_folders() -> list[Path]:
    return sorted(_TEMPORARY.glob(_prefix() + "*"))


def _prefix() -> str:
    return f"cutrace-{os.geteuid()}-"


def _belongs_to_user(folder: Path) -> bool:
    with suppress(OSError):
        return folder.stat().st_uid == os.geteuid()
    return False


def _is_private(folder: Path) -> bool:
    """Whether a path is a folder, not a link, that only this user can enter."""
    with suppress(OSError):
        status = folder.lstat()
        return (
            stat.S_ISDIR(status.st_mode)
            and status.st_uid == os.geteuid()
            and not status.st_mode & 0o077
        )
    return False
