"""Make pictures of the documentation: a session with every state in a terminal, as a page and as a comment.

    python docs/images/make_reports.py [FOLDER]

Needs what the tests need for the fake GPU, the packages markdown-it-py and Pillow, and Chromium, which CHROMIUM may
name. The files of the session stay in FOLDER, if it is given.
"""

from __future__ import annotations

import html
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from hashlib import blake2b
from pathlib import Path

from markdown_it import MarkdownIt
from PIL import Image

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
sys.path.insert(0, str(ROOT / "tests"))
from support import every_state  # noqa: E402
from support.fakedriver import build  # noqa: E402

COLOURS = {"31": "#e06c75", "32": "#98c379", "33": "#d8b365", "2": "#8b8b8b"}
TERMINAL = """
body { margin: 0; background: #282828; color: #d4d4d4; font: 15px/1.4 "DejaVu Sans Mono", monospace; }
pre { margin: 0; padding: 12px 16px; font: inherit; white-space: pre-wrap; }
"""
COMMENT = """
body { margin: 0; padding: 16px 24px; color: #1f2328; font: 14px/1.5 "Noto Sans", "DejaVu Sans", sans-serif; }
h2 { margin: 0 0 12px; border-bottom: 1px solid #d1d9e0; font-size: 21px; }
h3 { margin: 20px 0 10px; font-size: 17px; }
p, ul, table, pre, details { margin: 0 0 10px; }
code { padding: 2px 5px; border-radius: 6px; background: #f0f1f3; font: 85% "DejaVu Sans Mono", monospace; }
pre { padding: 10px 14px; border-radius: 6px; background: #f6f8fa; }
pre code { padding: 0; background: none; }
table { border-collapse: collapse; }
th, td { padding: 5px 12px; border: 1px solid #d1d9e0; }
blockquote { margin: 0 0 10px; padding: 0 14px; border-left: 4px solid #d1d9e0; color: #59636e; }
a { color: #0969da; }
"""


#: The sessions of the picture of trends, and those of them after the change.
COMMITS, CHANGED = 16, 4


def session(folder: Path) -> str:
    """Run the sessions of the suite; returns the output of the last."""
    every_state.write(folder)
    output = ""
    for arguments, more in every_state.SESSIONS:
        output = run(folder, arguments, more)
    return output


def history(folder: Path) -> list[Path]:
    """Run the suite once for each commit; returns the reports, oldest first."""
    reports = []
    for commit in range(COMMITS):
        more = {"GITHUB_SHA": blake2b(str(commit).encode()).hexdigest()[:40]}
        if commit >= COMMITS - CHANGED:
            more["CHANGED"] = "1"
        run(folder, ["--cutrace", "--cutrace-report=json"], more)
        kept = folder / f"commit{commit:02}.json"
        shutil.copyfile(folder / ".cutrace" / "report.json", kept)
        reports.append(kept)
    return reports


def run(folder: Path, arguments: list[str], more: Mapping[str, str]) -> str:
    """Run pytest in the folder; returns its output."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "CUTRACE_"))}
    variables = build(folder / ".fake").environment(clean)
    variables |= {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONDONTWRITEBYTECODE": "1", "COLUMNS": "118", **more}
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-p", "cutrace", "--color=yes", "--tb=short"]
    done = subprocess.run([*command, *arguments], cwd=folder, env=variables, stdout=subprocess.PIPE, text=True)
    return done.stdout


def plain(line: str) -> str:
    return re.sub(r"\x1b\[[\d;]*m", "", line)


def excerpt(output: str) -> Iterator[str]:
    """The lines of some failures, and the footer."""
    shown = False
    for line in output.splitlines():
        words = plain(line)
        if re.match(r"_+ test|-+ cutrace -|=+ ", words):
            shown = bool(re.search(r" test_(decode|step|fwd\[float16-1024x\d+\]) | cutrace -", words))
        if shown:
            yield line


def coloured(line: str) -> str:
    """The HTML of a line of a terminal."""
    out = ""
    for codes, text in re.findall(r"(?:\x1b\[([\d;]*)m)?([^\x1b]*)", line):
        style = "font-weight:bold;" if "1" in codes.split(";") else ""
        for code in codes.split(";"):
            if code in COLOURS:
                style += f"color:{COLOURS[code]}"
        out += f'<span style="{style}">{html.escape(text)}</span>'
    return out


def picture(name: str, page: Path, width: int, height: int, fragment: str = "") -> None:
    """Write the picture of a page, as wide and at most as high as given, in few colours."""
    browser = os.environ.get("CHROMIUM") or shutil.which("chromium") or "google-chrome"
    path = HERE / name
    options = ["--headless", "--no-sandbox", "--hide-scrollbars", f"--window-size={width},{height}"]
    command = [browser, *options, f"--screenshot={path}", page.resolve().as_uri() + fragment]
    subprocess.run(command, check=True, capture_output=True)
    with Image.open(path) as shot:
        shot.convert("RGB").quantize(256).save(path, optimize=True)


def document(folder: Path, name: str, style: str, body: str) -> Path:
    path = folder / f"{name}.html"
    path.write_text(f"<!doctype html><meta charset=utf-8><style>{style}</style>{body}")
    return path


def main() -> None:
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(tempfile.mkdtemp())
    folder.mkdir(exist_ok=True)
    output = session(folder)
    lines = list(excerpt(output))
    terminal = document(folder, "terminal", TERMINAL, "<pre>" + "\n".join(map(coloured, lines)) + "</pre>")
    picture("report-terminal.png", terminal, 1110, 21 * (len(lines) + 1) + 24)
    reports = folder / ".cutrace"
    download = "gh run download 8123 --repo owner/project --name cutrace --dir cutrace-8123"
    where = ["--download", download, "--into", "cutrace-8123", "--page", "https://github.com/owner/project"]
    merge = [sys.executable, "-m", "cutrace", "report", "merge", reports / "report.json"]
    subprocess.run([*merge, "-o", reports / "summary.md", *where], check=True)
    summary = MarkdownIt("commonmark", {"html": True}).enable("table").render((reports / "summary.md").read_text())
    picture("report-summary.png", document(folder, "summary", COMMENT, summary), 900, 1690)
    picture("report-page.png", reports / "report.html", 1280, 1520, "#t1")
    trend = folder / "trend.html"
    subprocess.run([sys.executable, "-m", "cutrace", "report", "trend", *history(folder), "-o", trend], check=True)
    picture("report-trend.png", trend, 1280, 900)


if __name__ == "__main__":
    main()
