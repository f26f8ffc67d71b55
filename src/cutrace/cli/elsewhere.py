"""What replaces the verbs and options of other tools, for error messages."""

from __future__ import annotations

import shutil
from pathlib import Path

import click

_RECORD_A_PART = "start the program with `cutrace arm -- COMMAND`, and record a part of it with `cutrace attach PID`"
_LOOK = "`cutrace open FILE` shows the timeline, and `cutrace view FILE` writes a page"
_STATISTICS = "`cutrace stats FILE` says what took the time"

#: Verbs of other tools.
VERBS = {
    "analyze": _STATISTICS,
    "compare": "`cutrace diff BEFORE AFTER` compares traces",
    "export": "`cutrace convert FILE -o OUT` writes other formats",
    "flamegraph": "`cutrace view FILE` writes a page with a flame graph",
    "import": "each verb reads files of other tools as they are",
    "launch": _RECORD_A_PART,
    "query": "`cutrace sql FILE QUERY` answers a query",
    "recipe": "`cutrace batch REPORT FILE... -o FOLDER` reports over many traces",
    "serve": _LOOK,
    "show": _LOOK,
    "start": _RECORD_A_PART,
    "summary": _STATISTICS,
    "trace": "`cutrace record -- COMMAND` records a command",
    "ui": _LOOK,
}

_KINDS = "--kinds says which kinds of activity are recorded; CUDA and NVTX are recorded without it"
_DELAY = "start the program with `cutrace arm`, and record a part of it with `cutrace attach PID --for TIME`"
_REPLACED = "an output that exists is replaced"
_GPU = "CUDA_VISIBLE_DEVICES=N in the environment selects a GPU"
_KERNEL = "--kernel NAME selects kernels"
_SET = (
    "--metrics SET selects what is counted, and `cutrace metrics sets` lists the sets"
)

#: Options of other tools, by verb.
OPTIONS = {
    "record": {
        "--trace": _KINDS,
        "-t": _KINDS,
        "--start": _DELAY,
        "--end": _DELAY,
        "--delay": _DELAY,
        "--duration": _DELAY,
        "--force-overwrite": _REPLACED,
        "-f": _REPLACED,
        "--gpu-metrics-devices": "--sample metrics samples the metrics of GPUs",
        "--python-backtrace": "--stacks KIND,... records Python stacks",
        "--stats": "run `cutrace stats` on the capture",
    },
    "attach": {"--duration": "--for TIME limits the recording"},
    "stats": {
        "-r": "--report NAME selects a report",
        "--force-export": "files are read as they are, without an export",
    },
    "list": {"--gpu": "--chip NAME selects the chip, by default that of the first GPU"},
    "profile": {
        "--devices": _GPU,
        "--gpu": _GPU,
        "--kernel-name": _KERNEL,
        "-k": _KERNEL,
        "--launch-count": "--count N limits the launches",
        "-c": "--count N limits the launches",
        "--launch-skip": "--skip N skips launches",
        "-s": "--skip N skips launches",
        "--set": _SET,
        "--section": _SET,
    },
}

#: Verbs that read a whole trace, and options of `cutrace slice` that users expect there.
_WHOLE = ("batch", "convert", "diff", "info", "merge", "open", "sql", "stats", "view")
_SELECT = ("--end", "--gpu", "--kernel", "--nvtx", "--process", "--start", "--stream")


def instead_of_verb(word: str, similar: str) -> str:
    """Return what replaces this verb of another tool, or what to do with this file or program. ``similar`` is the
    question after similar verbs; it precedes a program, because ``stat`` is one. Else an empty string."""
    if word in VERBS:
        return VERBS[word]
    if word.endswith(".py"):
        return f"`cutrace record -- python {word}` records this program"
    if Path(word).is_file():
        return f"`cutrace stats {word}` says what took the time, and `cutrace open {word}` shows the timeline"
    if not similar and shutil.which(word):
        return f"`cutrace record -- {word} ...` records this program"
    return similar


def instead_of_option(error: click.UsageError) -> str:
    """Return a message that names what replaces the unknown option of this error, or an empty string."""
    if not isinstance(error, click.NoSuchOption) or error.ctx is None:
        return ""
    verb = error.ctx.info_name or ""
    option = error.option_name
    instead = OPTIONS.get(verb, {}).get(option, "")
    if not instead and verb in _WHOLE and option in _SELECT:
        instead = f"`cutrace slice {option}` cuts a part out, for `cutrace {verb}`"
    if not instead:
        return ""
    return f"No such option {option!r}: {instead}"
