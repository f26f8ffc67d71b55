"""Print the tables of run.bin as Markdown: ``python -m cutrace.runbin.describe``; run-bin.md holds the output."""

from __future__ import annotations

from .layout import LOSS_REASONS, TABLES


def markdown() -> str:
    lines: list[str] = []
    for t in TABLES.values():
        lines += [f"### {t.name} (kind {t.number}, {t.row_size} bytes)", "", t.doc, ""]
        lines += [
            "| offset | type | field | unit | meaning |",
            "|---:|---|---|---|---|",
        ]
        lines += [
            f"| {t.offsets[f.name]} | {f.type} | {f.name} | {f.unit} | {f.doc} |"
            for f in t.fields
        ]
        lines.append("")
    lines += [
        "### Reasons of losses",
        "",
        "| number | name | what is counted |",
        "|---:|---|---|",
    ]
    lines += [
        f"| {number} | {name} | {text} |"
        for number, (name, text) in LOSS_REASONS.items()
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(markdown(), end="")
