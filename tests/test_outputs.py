"""The outputs of captures equal the outputs of the last commit, so that every unintended change is noticed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import outputs

EXPECTED = json.loads(outputs.DIGESTS.read_text())


@pytest.mark.parametrize("name", outputs.NAMES)
def test_outputs_are_the_same(name: str, tmp_path: Path) -> None:
    found = outputs.digests(name, tmp_path)
    changed = [output for output in found | EXPECTED[name] if found.get(output) != EXPECTED[name].get(output)]
    assert not changed, (
        f"{', '.join(changed)} of {name} changed: compare `python tests/outputs.py FOLDER` of both versions, and run "
        "`python tests/outputs.py --update` if all differences are intended"
    )
