"""Check the shell scripts in the action for GitHub and in the template for GitLab with shellcheck."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from ruamel.yaml import YAML

ROOT = Path(__file__).parents[1]


def scripts() -> Iterator[tuple[str, str]]:
    """Each script with its shell."""
    yaml = YAML(typ="safe")
    action = yaml.load(ROOT / ".github" / "actions" / "cutrace" / "action.yml")
    for step in action["runs"]["steps"]:
        if "run" in step:
            yield step["shell"], step["run"]
    template = yaml.load(ROOT / "templates" / "cutrace.yml")[".cutrace"]
    for part in ("script", "after_script"):
        yield "sh", "\n".join(template[part])


failed = 0
for shell, script in scripts():
    failed |= subprocess.run(["shellcheck", f"--shell={shell}", "-"], input=script, text=True).returncode
sys.exit(failed)
