"""The recipes of docs/howto/ci.md on a GPU: they pass, and they fail for the changes that the page lists."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

RECIPES = Path(__file__).parent / "recipes"
#: A recipe, its requirements, a change, and a part of the failure message.
PLANTED = [
    ("training", ["torch"], ("loss.backward()", "loss.backward(); loss.item()"), "backward/sync_calls"),
    ("compiled", ["torch", "triton"], ("torch.compile(lambda x", "(lambda x"), "activation/kernel_launches"),
    (
        "autotuned",
        ["torch", "triton"],
        ("(x, out, 3.0, 5000)", "(x, out, 3.0, 5000); out += 0"),
        "scale/kernel_launches",
    ),
    ("fused", ["cupy"], ("@cupy.fuse()\n", ""), "difference/kernel_launches"),
    (
        "decode",
        ["torch"],
        (".argmax(-1)", ".argmax(-1); int(token[0])"),
        "over the limit, test_decode.py:22 in test_decode x16",
    ),
]


def run(folder: Path, *options: str) -> tuple[int, str]:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *options]
    inherited = {k: v for k, v in os.environ.items() if k != "CI" and not k.startswith("PYTEST_XDIST_")}
    done = subprocess.run(command, cwd=folder, env=inherited, capture_output=True, text=True, timeout=300)
    return done.returncode, done.stdout + done.stderr


@pytest.mark.parametrize(("recipe", "modules", "change", "said"), PLANTED, ids=[row[0] for row in PLANTED])
def test_a_recipe_passes_and_finds_what_it_is_for(
    recipe: str, modules: list[str], change: tuple[str, str], said: str, tmp_path: Path, needs: Callable[..., None]
) -> None:
    needs(*modules)
    text = (RECIPES / f"test_{recipe}.py").read_text()
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    test = tmp_path / f"test_{recipe}.py"
    test.write_text(text)
    status, output = run(tmp_path, "--cutrace-update")
    assert status == 0, output
    status, output = run(tmp_path, "--cutrace=require")
    assert status == 0, output
    assert "1 gated" in output
    assert change[0] in text
    test.write_text(text.replace(*change))
    status, output = run(tmp_path, "--cutrace=require")
    assert status == 1, output
    assert said in output
