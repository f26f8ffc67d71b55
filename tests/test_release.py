""".ci/release.py, up to the checks."""

from __future__ import annotations

import re
from datetime import date
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SPEC = spec_from_file_location("release", ROOT / ".ci" / "release.py")
release = module_from_spec(SPEC)
SPEC.loader.exec_module(release)

TODAY = date(2030, 1, 2)


@pytest.fixture
def project(tmp_path):
    for name in ("pyproject.toml", "CITATION.cff", "CHANGELOG.md"):
        (tmp_path / name).write_bytes((ROOT / name).read_bytes())
    changelog = tmp_path / "CHANGELOG.md"
    text = changelog.read_text()
    if "## Unreleased\n" not in text:
        changelog.write_text(text.replace("\n## ", "\n## Unreleased\n\n* A change.\n\n## ", 1))
    return tmp_path


def test_a_release_sets_the_version_and_dates_the_changelog(project):
    files = {path.name: text for path, text in release.changed(project, "99.0.0", TODAY).items()}
    assert '\nversion = "99.0.0"\n' in files["pyproject.toml"]
    assert "\nversion: 99.0.0\n" in files["CITATION.cff"]
    titles = re.findall(r"^## .*$", files["CHANGELOG.md"], re.MULTILINE)
    assert titles[:2] == ["## Unreleased", "## 99.0.0 - 2030-01-02"]


@pytest.mark.parametrize("version", ["0.0.1", "1.0", "v1.0.0", ""])
def test_a_version_that_is_not_newer_is_refused(project, version):
    with pytest.raises(release.ReleaseError, match="give"):
        release.changed(project, version, TODAY)


def test_a_release_without_changes_is_refused(project):
    (project / "CHANGELOG.md").write_text("# Changelog\n\n## Unreleased\n\n## 0.2.0\n")
    with pytest.raises(release.ReleaseError, match="say there what changed"):
        release.changed(project, "99.0.0", TODAY)
