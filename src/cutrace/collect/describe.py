"""Print the options of a recording as Markdown: ``python -m cutrace.collect.describe``; docs/cli.md has the output."""

from __future__ import annotations

import re

from .options import Option, Options


def markdown(options: type[Options] = Options) -> str:
    lines = ["| option | in Python | meaning |", "|---|---|---|"]
    for row in options.declared().values():
        value = row.metavar or "|".join(row.choices)
        flag = f"{row.flag} {value}".rstrip()
        cells = [f"`{flag}`" if row.verbs else "", f"`{_argument(row)}`", _meaning(row)]
        lines.append(
            " | ".join(["", *(cell.replace("|", "\\|") for cell in cells), ""]).strip()
        )
    return "\n".join(lines) + "\n"


def _argument(row: Option) -> str:
    """An example of the argument in Python."""
    if row.switch is not None:
        return f"{row.keyword}={row.switch}"
    if row.number:
        return f"{row.keyword}={row.example}"
    return f'{row.keyword}="{row.example}"'


def _meaning(row: Option) -> str:
    sentences = [re.sub(r"(?<!\S)(--[a-z-]+)", r"`\1`", row.help)]
    if row.more:
        sentences.append(row.more)
    if row.default:
        sentences.append(f"Default: `{row.default}`.")
    if row.verbs and "arm" not in row.verbs:
        sentences.append("Not for `cutrace arm`.")
    return " ".join(sentences)


if __name__ == "__main__":
    print(markdown(), end="")
