#!/usr/bin/env python3
"""Release a version: ``.ci/release.py 0.3.0``.

Sets the version, dates the changelog, runs all checks (`.ci/run`, which also builds the sdist and a wheel), commits,
tags, and pushes after a question. The tag makes `.github/workflows/wheels.yml` build, test and publish the wheels of
all systems. When a check fails, the files are as they were before.
"""

from __future__ import annotations

import re
import subprocess
import sys
from datetime import date
from pathlib import Path

ROOT = Path(__file__).parents[1]
UNRELEASED = "## Unreleased\n"


class ReleaseError(Exception):
    """A sentence that says why nothing is released, and what to do."""


def numbers(version: str) -> tuple[int, ...]:
    """The numbers of a version such as ``0.3.0``."""
    if not re.fullmatch(r"\d+\.\d+\.\d+", version):
        raise ReleaseError(f"{version!r} is not a version: give three numbers, such as 0.3.0")
    return tuple(map(int, version.split(".")))


def replaced(pattern: str, new: str, text: str, file: str) -> str:
    """The text with the one line that matches ``pattern`` replaced."""
    made, count = re.subn(pattern, new, text, flags=re.MULTILINE)
    if count != 1:
        raise ReleaseError(f"{file} has {count} lines like {pattern!r}: correct it by hand")
    return made


def changed(root: Path, version: str, today: date) -> dict[Path, str]:
    """The files of a release with their new text."""
    project, citation, changelog = (root / name for name in ("pyproject.toml", "CITATION.cff", "CHANGELOG.md"))
    text = project.read_text()
    line = r'^version = "(.*)"$'
    current = re.search(line, text, re.MULTILINE)
    if current is None or numbers(current[1]) >= numbers(version):
        raise ReleaseError(f"{version} is not newer than the version in {project.name}: give a newer one")
    before, found, after = changelog.read_text().partition(UNRELEASED)
    if not found or after.lstrip().startswith("## "):
        raise ReleaseError(f"{changelog.name} has nothing under {UNRELEASED.strip()!r}: say there what changed")
    return {
        project: replaced(line, f'version = "{version}"', text, project.name),
        citation: replaced(r"^version: .*$", f"version: {version}", citation.read_text(), citation.name),
        changelog: f"{before}{UNRELEASED}\n## {version} - {today:%Y-%m-%d}\n{after}",
    }


def git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=ROOT, check=True, capture_output=True, text=True).stdout.strip()


def release(version: str) -> None:
    """Make the commit and the tag, and push both. Raises :class:`ReleaseError` before anything changes."""
    if git("status", "--porcelain"):
        raise ReleaseError("there are changes that are not committed: commit or stash them")
    tag = f"v{version}"
    if git("tag", "--list", tag):
        raise ReleaseError(f"the tag {tag} exists: give a newer version")
    files = changed(ROOT, version, date.today())
    for path, text in files.items():
        path.write_text(text)
    if subprocess.run([ROOT / ".ci" / "run"]).returncode:
        git("checkout", "--", *map(str, files))
        raise ReleaseError("a check failed: mend what it says, and run this again")
    git("commit", "-am", f"release: cutrace {version}")
    git("tag", "-a", tag, "-m", f"cutrace {version}")
    command = ["git", "push", "--atomic", "origin", "HEAD", tag]
    if input(f"{' '.join(command)}: publish cutrace {version}? [y/N] ").lower() == "y":
        subprocess.run(command, cwd=ROOT, check=True)
    else:
        print(f"Not published. Publish later with: {' '.join(command)}")


def main() -> int:
    if len(sys.argv) != 2:
        print("usage: .ci/release.py VERSION", file=sys.stderr)
        return 2
    try:
        release(sys.argv[1])
    except ReleaseError as error:
        print(f"release: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
