"""Commands on pages that cannot run here are valid, because their verbs and options exist."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import click
import pytest

from cutrace.cli import cli

ROOT = Path(__file__).parents[2]
HOWTO = ("attach", "containers", "long-runs", "nsight-systems", "pytorch", "servers", "slow-kernel", "slurm")
PAGES = ["docs/quickstart.md", *(f"docs/howto/{name}.md" for name in HOWTO)]
_BEHIND = {"|", ">", "2>", "2>&1", "&", "&&"}


def commands(text: str) -> list[list[str]]:
    """The command lines of cutrace in code blocks, including command lines after another command."""
    blocks = re.findall(r"^```sh\n(.*?)^```|^((?:    [^\n]*\n)+)", text, re.MULTILINE | re.DOTALL)
    lines = "".join(map("".join, blocks)).replace("\\\n", " ").splitlines()
    found = []
    for line in lines:
        words = shlex.split(line, comments=True)
        if "cutrace" in words:
            own = words[words.index("cutrace") + 1 :]
            end = next((place for place, word in enumerate(own) if word in _BEHIND), len(own))
            found.append(own[:end])
    listed = re.search(r"command: \[cutrace, (.*?)\]$", text, re.MULTILINE)
    if listed:
        found.append([word.strip().strip('"') for word in listed[1].split(",")])
    return found


@pytest.mark.parametrize("page", PAGES)
def test_the_commands_of_a_page_parse(page: str) -> None:
    text = (ROOT / page).read_text()
    found = commands(text)
    assert len(found) >= 4
    # Click takes the help option of a verb from its first context, so this context needs the settings of the group.
    context = click.Context(cli, **cli.context_settings)
    for verb, *arguments in found:
        command = cli.get_command(context, verb)
        assert command is not None, verb
        command.make_context(verb, arguments, parent=context)


def test_the_pages_of_users_can_be_read() -> None:
    """All pages except the reference and the pages for contributors."""
    pages = {*ROOT.glob("docs/*.md"), *ROOT.glob("docs/howto/*.md"), *ROOT.glob("docs/tutorials/*.md")}
    assert sum(len(page.read_text().split()) for page in pages) <= 35_000
