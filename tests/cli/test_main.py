"""The command line as a whole: help, versions, and errors for bad input."""

from __future__ import annotations

import gzip
import os
import shlex
import signal
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import click
import numpy as np
import pytest

from captures import Capture
from cutrace.api import stats
from cutrace.cli import MOVED, VERBS, cli, main
from cutrace.cli.options import as_options
from cutrace.errors import CutraceError
from cutrace.runbin import Writer
from support import cutrace, on_a_terminal, rows, small_capture


def test_help_names_every_verb_with_its_line():
    done = cutrace("--help")
    assert done.returncode == 0
    for verb, line in VERBS.items():
        assert verb in done.stdout
        assert line in done.stdout


@pytest.mark.parametrize("verb", VERBS)
def test_a_verb_is_a_command_of_its_module_with_the_help_of_the_list(verb):
    command = cli.get_command(click.Context(cli), verb)
    assert command is getattr(import_module(f"cutrace.cli.{verb}"), verb)
    assert command.name == verb
    assert command.get_short_help_str(100) == VERBS[verb]


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_has_help(verb):
    done = cutrace(verb, "--help")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(f"Usage: cutrace {verb}")
    assert "docs/" not in done.stdout  # a wheel has no such folder


def test_the_version_is_that_of_the_package():
    from importlib.metadata import version

    for option in ("--version", "-V"):
        assert cutrace(option).stdout == f"cutrace {version('cutrace')}\n"


@pytest.mark.parametrize("arguments", [[], ["golden"], ["report"]])
def test_a_command_with_verbs_shows_its_help_where_none_is_given(arguments):
    done = cutrace(*arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == cutrace(*arguments, "--help").stdout


def test_help_of_a_verb_has_two_spellings():
    assert cutrace("help").stdout == cutrace("--help").stdout
    for words in (["stats"], ["golden", "accept"]):
        assert cutrace("help", *words).stdout == cutrace(*words, "--help").stdout
    assert cutrace("golden", "help", "accept").stdout == cutrace("golden", "accept", "--help").stdout


BAD = {
    "no such verb": (["fly"], "No such command 'fly'. See `cutrace --help`."),
    "a verb misspelt": (["recrod"], "No such command 'recrod': did you mean record? See `cutrace --help`."),
    **{f"the verb {verb}, which moved": ([verb, "-o", "x"], sentence) for verb, sentence in MOVED.items()},
    "a verb of a verb misspelt": (["golden", "chekc"], "did you mean check?"),
    "a report misspelt": (
        ["stats", "--report", "cuda_gpu_kernsum", "{tmp}/good.bin"],
        "did you mean cuda_gpu_kern_sum or",
    ),
    "an ending misspelt": (["convert", "{tmp}/good.bin", "-o", "{tmp}/x.pftarce"], "did you mean .pftrace"),
    "a page by convert": (["convert", "{tmp}/good.bin", "-o", "{tmp}/x.html"], "`cutrace view` writes a page"),
    "a picture by convert": (["convert", "{tmp}/good.bin", "-o", "{tmp}/x.svg"], "write .folded, and"),
    "a report of nsys": (["record", "-o", "{tmp}/x.nsys-rep", "true"], "only nsys writes it; .sqlite has"),
    "no command": (["record"], "Missing argument"),
    "no file": (["stats"], "Missing argument"),
    "no report": (["batch", "{tmp}/good.bin", "-o", "{tmp}/out"], "Name a report and then files"),
    "no query": (["sql", "{tmp}/good.bin"], "cutrace sql run.bin 'show tables'"),
    "no output": (["convert", "{tmp}/good.bin"], "Missing option '-o' / '--output'. See `cutrace convert --help`."),
    "a recording to stdout": (["record", "-o", "-", "--", "true"], "A recording cannot go to stdout"),
    "hardware metrics into a trace": (["profile", "-o", "{tmp}/a.pftrace", "--", "true"], "ends in .bin"),
    "unknown option": (["info", "--wrong"], "No such option"),
    "unknown command": (["record", "-o", "{tmp}/r.bin", "--", "no-such-command"], "command not found: no-such-command"),
    "unknown kind": (["record", "-o", "{tmp}/r.bin", "--kinds", "warp", "--", "true"], "unknown kind of activity"),
    "bad size": (["record", "-o", "{tmp}/r.bin", "--max-size", "big", "--", "true"], "512MiB"),
    "no folder": (["record", "-o", "{tmp}/absent/r.bin", "--", "true"], "does not exist"),
    "absent": (["info", "{tmp}/absent.bin"], "No such file"),
    "empty": (["info", "{tmp}/empty.bin"], "empty"),
    "no capture": (["info", "{tmp}/text.bin"], "is text, not a trace"),
    "a folder": (["info", "{tmp}"], "it is a folder"),
    "a pipe": (["info", "{tmp}/pipe"], "it is not a regular file"),
    "a device": (["info", "/dev/zero"], "it is not a regular file"),
    "a file of this folder": (["record", "-o", "{tmp}/r.bin", "--", "pyproject.toml"], "write ./pyproject.toml"),
    "a folder as command": (["record", "-o", "{tmp}/r.bin", "--", "{tmp}"], "is a folder"),
    "a name that is too long": (["convert", "{tmp}/good.bin", "-o", "{tmp}/" + "x" * 260 + ".pftrace"], "too long"),
    "convert absent": (["convert", "{tmp}/absent.bin", "-o", "{tmp}/x.pftrace"], "No such file"),
    "convert empty": (["convert", "{tmp}/empty.bin", "-o", "{tmp}/x.pftrace"], "empty"),
    "convert text": (["convert", "{tmp}/text.bin", "-o", "{tmp}/x.pftrace"], "is text, not a trace"),
    "one bad of two": (["convert", "{tmp}/good.bin", "{tmp}/text.bin", "-o", "{tmp}/x.pftrace"], "text.bin is text"),
    "unknown format": (["convert", "{tmp}/good.bin", "-o", "{tmp}/x.txt"], ".pftrace"),
    "unwritable": (["convert", "{tmp}/good.bin", "-o", "{tmp}/absent/x.pftrace"], "does not exist"),
    "onto a folder": (["convert", "{tmp}/good.bin", "-o", "{tmp}/folder.pftrace"], "not a file"),
    "bad time": (["convert", "{tmp}/good.bin", "-o", "{tmp}/x.pftrace", "--start", "soon"], "1.5s"),
    "empty span": (
        ["convert", "{tmp}/good.bin", "-o", "{tmp}/x.pftrace", "--start", "2s", "--end", "1s"],
        "after the start",
    ),
    "stats of no such report": (["stats", "{tmp}/good.bin", "--report", "kernels"], "there is no report 'kernels'"),
    "stats of a list of reports": (
        ["stats", "{tmp}/good.bin", "--report", "gpu_sum,idle_sum"], "give each report an option --report of its own",
    ),
    "stats of a pattern": (["stats", "{tmp}/no*.bin"], "no file matches {tmp}/no*.bin. Check the pattern"),
    "stats of a pattern in quotes": (["stats", "{tmp}/goo*.bin"], "{tmp}/goo*.bin is a pattern"),
    "a set of letters in quotes": (["stats", "{tmp}/goo[cd].bin"], "Leave out the quotes, so that the shell"),
    "a golden file by a pattern": (["diff", "{tmp}/no*.toml", "{tmp}/good.bin"], "no file matches {tmp}/no*.toml"),
    "a report by a pattern": (["report", "compare", "{tmp}/no*.json", "{tmp}/good.bin"], "no file matches {tmp}/no*"),
    "a kind of activity as in nsys": (["record", "--trace=cuda", "--", "true"], "No such option '--trace': --kinds"),
    "a delay as in nsys": (
        ["record", "--start", "10s", "--", "true"], "No such option '--start': start the program with `cutrace arm`",
    ),
    "kinds of activity as in nsys": (["record", "-t", "cuda,nvtx", "true"], "No such option '-t': --kinds says which"),
    "kernels as in ncu": (["profile", "-k", "regex:gemm", "true"], "No such option '-k': --kernel NAME"),
    "a GPU to profile": (["profile", "--gpu", "1", "true"], "No such option '--gpu': CUDA_VISIBLE_DEVICES=N in the"),
    "a GPU as in ncu": (["profile", "--devices", "1", "true"], "No such option '--devices': CUDA_VISIBLE_DEVICES=N"),
    "metrics of a GPU": (["metrics", "list", "--gpu", "1"], "No such option '--gpu': --chip NAME selects the chip"),
    "statistics of a GPU": (
        ["stats", "--gpu", "0", "{tmp}/good.bin"],
        "No such option '--gpu': `cutrace slice --gpu` cuts a part out, for `cutrace stats`. See",
    ),
    "an export as in nsys": (
        ["export", "{tmp}/good.bin"],
        "No such command 'export': `cutrace convert FILE -o OUT` writes other formats. See `cutrace --help`.",
    ),
    "a capture without a verb": (["{tmp}/good.bin"], "`cutrace stats {tmp}/good.bin` says what took the time, and"),
    "a script without a verb": (["train.py"], "`cutrace record -- python train.py` records this program"),
    "a program that is named like a verb": (["stat", "run.bin"], "did you mean stats"),
    "a command without a verb": (["sh", "-c", "true"], "`cutrace record -- sh ...` records this program"),
    "attach to a program": (["attach", "train.py"], "'train.py' is not a process id: see `cutrace ps`, or start a"),
    "captures as reports": (
        ["report", "compare", *["{tmp}/good.bin"] * 2],
        "{tmp}/good.bin is not a cutrace report but a binary file: name a JSON file that cutrace wrote",
    ),
    "stats by no such column": (["stats", "{tmp}/good.bin", "--sort", "speed"], "no report has a column 'speed'"),
    "a listing in another order": (
        ["stats", "{tmp}/good.bin", "--report", "cuda_gpu_trace", "--sort", "duration"], "leave out --sort",
    ),
    "no time": (["stats", "{tmp}/good.bin", "--short", "soon"], "'soon' is not a time"),
    "a negative limit": (["stats", "{tmp}/good.bin", "--limit", "-1"], "--limit"),
    "tables into no folder": (["stats", "{tmp}/good.bin", "-o", "/nowhere/at/all.txt"], "does not exist"),
    "no aspect": (["diff", "{tmp}/good.bin", "{tmp}/good.bin", "--fail-on", "speed"], "'speed' is not an aspect"),
    "no tolerance": (["diff", "{tmp}/good.bin", "{tmp}/good.bin", "--tolerance", "time"], "'time' is not a tolerance"),
    "a difference into no folder": (["diff", "{tmp}/good.bin", "{tmp}/good.bin", "-o", "/no/a.txt"], "does not exist"),
    "a golden file behind a capture": (
        ["diff", "{tmp}/good.bin", "{tmp}/g.toml"], "a golden file comes before the captures",
    ),
    "three traces": (["diff", *["{tmp}/good.bin"] * 3], "add files of one trace by --with-before and --with-after"),
    "a test of traces": (["diff", *["{tmp}/good.bin"] * 2, "--test", "x"], "--test is not for two traces"),
    "a limit of runs": (
        ["diff", "{tmp}/g.toml", "{tmp}/good.bin", "--limit", "3"], "--limit is not for a golden file and captures",
    ),
    "aspects of golden files": (
        ["diff", "{tmp}/g.toml", "{tmp}/g.toml", "--fail-on", "none"], "--fail-on is not for two golden files",
    ),
    "goldens as a page": (
        ["diff", "{tmp}/g.toml", "{tmp}/g.toml", "--format", "markdown"], "markdown is not for two golden files",
    ),
    "absent golden files": (["diff", "{tmp}/g.toml", "{tmp}/g.toml"], "g.toml: No such file or directory. Check"),
    "a golden file and a folder": (["diff", "{tmp}/golden", "{tmp}/g.toml"], "two golden files or two folders of them"),
    "golden diff, which moved": (["golden", "diff", "a", "b"], "golden diff is now: cutrace diff"),
    "golden update": (
        ["golden", "update"], "No such command 'update': `cutrace golden create` makes a golden file from",
    ),
    "golden prune, which moved": (["golden", "prune"], "cutrace golden check --prune"),
    "no format of diff": (["diff", "{tmp}/good.bin", "{tmp}/good.bin", "--format", "csv"], "'csv' is not one of"),
    "a page of tables": (["stats", "{tmp}/good.bin", "-o", "{tmp}/x.html"], "name a file that ends in .csv or .json"),
    "a picture of a difference": (["diff", *["{tmp}/good.bin"] * 2, "-o", "{tmp}/x.png"], "No table can be written to"),
    "a page of an answer": (["sql", "{tmp}/good.bin", "select 1", "-o", "{tmp}/x.html"], "No table can be written to"),
    "a compressed capture": (["info", "{tmp}/good.bin.gz"], "is a compressed capture: unpack it"),
    "names and ranks": (
        ["merge", "{tmp}/good.bin", "-o", "{tmp}/x.bin", "--name", "a", "--ranks"],
        "--name and --ranks exclude each other",
    ),
    "a page of three files": (["view", "{tmp}/good.bin", "{tmp}/a", "{tmp}/b"], "Name one file, or two: before, after"),
    "a folder of sources for no lines": (["view", "{tmp}/good.bin", "--root", "{tmp}"], "add --lines"),
    "more names than files": (
        ["merge", "{tmp}/good.bin", "-o", "{tmp}/x.bin", "--name", "a", "--name", "b"], "2 names for 1 file",
    ),
    "one file twice": (["merge", "{tmp}/good.bin", "{tmp}/good.bin", "-o", "{tmp}/x.bin"], "are one file"),
    "merged into no format": (["merge", "{tmp}/good.bin", "-o", "{tmp}/x.xyz"], "cannot tell the format of "),
    "a loop of links": (["info", "{tmp}/loop.bin"], "loop.bin: Too many levels of symbolic links. Check"),
    "a loop of links among several": (["info", "{tmp}/good.bin", "{tmp}/loop.bin"], "Too many levels of symbolic"),
    "a loop of links as output": (
        ["convert", "{tmp}/good.bin", "-o", "{tmp}/loop.bin"], "cannot write {tmp}/loop.bin: Too many levels",
    ),
    "a recording into a loop of links": (["record", "-o", "{tmp}/loop.bin", "--", "true"], "Too many levels"),
    "a loop of links as a folder": (["batch", "kernels", "{tmp}/good.bin", "-o", "{tmp}/loop.bin"], "Too many levels"),
    "an empty name": (["info", ""], "'CAPTURE...': the name is empty: name a file or a folder. See `cutrace info"),
    "an output without a name": (["convert", "{tmp}/good.bin", "-o", ""], "the name is empty: name a file or a folder"),
    "an option without its value": (["stats", "{tmp}/good.bin", "--sort"], "an argument. See `cutrace stats --help`."),
    "an option of a verb of a verb without its value": (["golden", "create", "--test"], "See `cutrace golden create"),
    "no whole number": (["stats", "{tmp}/good.bin", "--limit", "1.5"], "'1.5' is not a valid integer. See"),
    "a list in parts": (
        ["record", "-o", "{tmp}/r.bin", "--kinds", "warp", "--kinds", "kernel", "--", "true"], "activity: 'warp'; ",
    ),
    "a kernel without a name": (["slice", "{tmp}/good.bin", "-o", "{tmp}/x.bin", "--kernel", ""], "no kernel '':"),
    "a rank without a name": (["merge", "{tmp}/good.bin", "-o", "{tmp}/x.bin", "--name", ""], "a rank is empty: give"),
    "a slice of no format": (["slice", "{tmp}/absent.bin", "-o", "{tmp}/x.xyz"], "cannot tell the format of "),
    "a slice by no such kernel": (
        ["slice", "{tmp}/good.bin", "-o", "{tmp}/x.bin", "--kernel", "saxpi"],
        "the trace has no kernel saxpi: did you mean saxpy?",
    ),
    "a reason that is no page": (["why", "{tmp}/good.bin", "-o", "{tmp}/a.png"], "write a name that ends in .html"),
    "a reason into no folder": (["why", "{tmp}/good.bin", "-o", "{tmp}/absent/a.html"], "does not exist"),
    "a reason without metrics": (
        ["why", "{tmp}/good.bin", "-o", "{tmp}/a.html"],
        "good.bin: record them with `cutrace profile -- COMMAND`",
    ),
    "a reason of no file": (["why", "{tmp}/good.bin", "{tmp}/absent.bin"], "there are no hardware metrics"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_one_sentence_and_status_2_and_leaves_nothing(case, tmp_path, capsys, monkeypatch):
    (tmp_path / "empty.bin").touch()
    (tmp_path / "text.bin").write_text("not a capture")
    (tmp_path / "folder.pftrace").mkdir()
    (tmp_path / "golden").mkdir()
    (tmp_path / "golden" / "a.toml").touch()
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "loop.bin").symlink_to("loop.bin")
    monkeypatch.chdir(Path(__file__).parents[2])
    small_capture(tmp_path / "good.bin")
    (tmp_path / "good.bin.gz").write_bytes(gzip.compress((tmp_path / "good.bin").read_bytes()))
    before = sorted(tmp_path.rglob("*"))
    arguments, sentence = BAD[case]
    with pytest.raises(SystemExit) as end:
        main([argument.replace("{tmp}", str(tmp_path)) for argument in arguments])
    assert end.value.code == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("cutrace: ")
    assert err.count("\n") == 1
    assert sentence.replace("{tmp}", str(tmp_path)) in err
    assert sorted(tmp_path.rglob("*")) == before


#: Wrong usages by verb: the arguments, and a part of the message. The test above has the same files.
WRONG = {
    "record": [
        ("--api some -- true", "'some' is not one of"), ("--cuda-graph edge -- true", "'edge' is not one of"),
        ("--max-memory lots -- true", "'lots'"), ("--max-memory 1 -- true", "1 MiB"),
        ("--max-size 1 -- true", "64 KiB"),
        ("--last soon -- true", "'soon'"), ("--rotate -- true", "needs a maximum size"),
        ("--dump-when never -- true", "never"),
        ("--dump-limit some -- true", "'some' is not a valid integer"), ("--sample none -- true", "none"),
        ("--interval 1h --sample metrics -- true", "up to 1s"), ("--stacks all -- true", "all"),
        ("--capture-range loop -- true", "loop"), ("--capture-range-end never -- true", "never"),
        ("--kinds -- true", "unknown kind"), ("--unknown -- true", "No such option"),
    ],
    "attach": [
        ("", "Missing argument 'PID'"), ("me", "'me' is not a process id"), ("0", "0 is not in the range"),
        ("1 --for soon", "'soon'"), ("1 --every 1s", "give that length with --for"),
        ("1 --for 2s --every 1s", "give a longer --every"), ("1 -o -", "cannot go to stdout"),
    ],
    "arm": [("", "Missing argument"), ("--kinds warp -- true", "unknown kind"), ("-- no-such-command", "not found")],
    "ps": [("me", "unexpected extra argument"), ("--format xml", "'xml' is not one of"), ("--json", "No such option")],
    "convert": [
        ("", "Missing option"), ("{good} -o {tmp}/x.pftrace --by kernel", "'kernel' is not one of"),
        ("{good} -o {tmp}/x.pftrace --clock utc", "'utc' is not one of"),
        ("{good} -o {tmp}/x.pftrace --table kernels", "choose .csv"), ("{good} -o {tmp}/x.csv --table warps", "warps"),
        ("{good} -o {tmp}/x.sqlite --compress zstd", "choose .pftrace"),
        ("{good} -o {tmp}/kernels.csv --capture", "cannot carry"),
        ("{good} -o {tmp}/x.pftrace --by stack", "choose .folded"),
        ("{good} -o {tmp}/x --format gif", "no format 'gif'"),
        ("{good} -o {tmp}/x.pftrace --end 1.5.2", "1.5"), ("{good} -o {tmp}/x.pftrace --start @x", "@x"),
        ("--redact {good} -o {good}", "is an input"),
    ],
    "info": [
        ("{good} --json", "No such option"),
        ("{good} --format csv", "'csv' is not one of"),
        ("", "Missing argument"),
    ],
    "stats": [
        ("{good} --names short", "'short' is not one of"), ("{good} --limit many", "'many' is not a valid integer"),
        ("{good} --ranges all", "'all' is not one of"), ("{good} --kernel-wait x", "'x' is not a time"),
        ("{good} --report step_sum --name nothing", "nothing"), ("{good} --format xml", "'xml' is not one of"),
        ("{good} -o {tmp}/x.pdf", "name a file that ends in"), ("{good} --report gpu_sum --short 1us", "--short"),
    ],
    "slice": [
        ("{good} -o {tmp}/x.bin --index x", "x"), ("{good} -o {tmp}/x.bin --gpu 7", "no GPU 7: there is 0 (NVIDIA"),
        ("{good} -o {tmp}/x.bin --stream 9", "nothing is selected"), ("{good} -o {tmp}/x.bin --process x", "x"),
        ("{good} -o {tmp}/x.bin --test x", "x"), ("{good} -o {tmp}/x.bin --nvtx x", "x"),
        ("{good} -o {tmp}/x.bin --tables warps", "warps"), ("{good} -o {tmp}/x.bin --without warps", "warps"),
        ("{good} -o {tmp}/x.bin --kernel /(/", "/(/"), ("{good} -o {tmp}/x.bin --start 2s --end 1s", "after the start"),
    ],
    "diff": [
        ("{good}", "Missing argument 'AFTER...'"), ("{good} {tmp}/absent.bin", "No such file"),
        ("{good} {good} --tolerance speed=1", "speed"), ("{good} {good} --tolerance time=x", "not a tolerance of time"),
        ("{good} {good} --own k", "--own is not for two traces"), ("{good} {good} --gate work", "--gate is not for"),
        ("{tmp}/g.toml {good} --with-before {good}", "--with-before is not for"),
        ("{tmp}/g.toml {good} --all", "--all is not for"),
        ("{tmp}/g.toml {good} -o {tmp}/x.txt", "--output is not for"),
        ("{tmp}/golden {good}", "cannot read the golden file"),
    ],
    "golden": [
        ("create {good} --gate speed -o {tmp}/x.toml", "no metric 'speed'"), ("create", "Missing argument"),
        ("create {good} --update some -o {tmp}/x.toml --test a.py::t", "some"), ("accept", "Missing argument 'DIR'"),
        ("accept {tmp}/golden --golden-dir {tmp}", ""), ("check --yes", "add --prune"),
    ],
    "report": [
        ("merge {good} -o {tmp}/x.txt", "ends in"), ("compare {good} {good}", "good.bin"),
        ("compare {good}", "'AFTER'"),
        ("trend {good} -o {tmp}/x.html", "two reports or more"), ("merge {good} -o {tmp}/x.json --page x", ".md file"),
        ("merge {good} -o {tmp}/x.md --download x", "need each other"),
    ],
    "view": [
        ("{good} -o {tmp}/x.png", "ends in .html"), ("{good} --lines -o {tmp}/x.html", "was measured by line"),
        ("{good} --clock utc", "'utc' is not one of"), ("", "Missing argument"), ("{tmp}/absent.bin", "No such file"),
    ],
    "why": [
        ("", "Missing argument"),
        ("{good} {good} {good}", "unexpected extra argument"),
        ("{good} --format csv", "'csv'"),
    ],
    "merge": [("{good} -o {tmp}/x.bin --name a --name b", "2 names for 1 file"), ("{good}", "Missing option '-o'")],
    "batch": [
        ("nothing {good} -o {tmp}/out", "nothing"), ("kernels {good}", "Missing option '-o'"),
        ("kernels {good} -o {tmp}/out --workers 0", "0 is not in the range"), ("", "Missing"),
        ("kernels {good} -o {tmp}/out --mode threads", "'threads' is not one of"),
    ],
    "profile": [
        ("", "Missing argument"), ("--count 0 -- true", "0 is not in the range"), ("--skip x -- true", "'x'"),
        ("--caches cold -- true", "'cold' is not one of"), ("-o {tmp}/x.json -- true", "ends in .bin"),
    ],
    "metrics": [
        ("list --lines --sampled", "ask for one of them"),
        ("describe", "Missing argument"),
        ("lst", "mean list"),
    ],
    "open": [("", "Missing argument"), ("{good} --port 0", "0 is not in the range"), ("{good} --timeout x", "'x'")],
    "doctor": [("--json", "No such option"), ("now", "unexpected extra argument")],
}  # fmt: skip


@pytest.mark.parametrize(
    ("verb", "words", "sentence"), [(verb, *case) for verb, cases in WRONG.items() for case in cases]
)
def test_wrong_usage_is_refused(verb, words, sentence, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    good = small_capture(tmp_path / "good.bin")
    (tmp_path / "golden").mkdir()
    (tmp_path / "golden" / "a.toml").touch()
    before = {path: path.is_file() and path.read_bytes() for path in tmp_path.rglob("*")}
    with pytest.raises(SystemExit) as end:
        main([verb, *shlex.split(words.format(good=good, tmp=tmp_path))])
    out, err = capsys.readouterr()
    assert (end.value.code, out) == (2, "")
    assert err.startswith("cutrace: ")
    assert err.count("\n") == 1
    assert sentence in err
    assert {path: path.is_file() and path.read_bytes() for path in tmp_path.rglob("*")} == before


# Commands with an input as their output {}: the capture run.html, a report, or a file in a folder.
OVER_AN_INPUT = {
    "batch": ["batch kernels kernels.html -o .", "batch kernels kernels.manifest.json -o ."],
    "convert": [
        "convert run.html -o run.html --format chrome",
        "convert run.html -o ../here --format parquet",
        "convert --redact other.bin -o other.bin",
    ],
    "diff": [
        "diff run.html other.bin -o run.html --format json",
        "diff other.bin run.html -o run.html --format json",
        "diff other.bin other.bin --with-before run.html -o run.html --format json",
        "diff other.bin other.bin --with-after run.html -o run.html --format json",
    ],
    "golden create": ["golden create run.html -o run.html --test a.py::t"],
    "merge": ["merge run.html other.bin -o run.html --format chrome", "merge other.bin run.tar -o run.tar"],
    "report merge": ["report merge run.json other.bin -o run.json"],
    "report trend": ["report trend other.bin run.html -o run.html"],
    "slice": [
        "slice run.html -o run.html --format chrome",
        "slice other.bin -o other.bin",
        "slice parquet -o parquet/a.bin",
    ],
    "sql": ["sql run.html 'select 1' -o run.html --format json"],
    "stats": ["stats run.html -o run.html --format csv", "stats other.bin run.html -o link.html --format csv"],
    "why": ["why run.html -o run.html", "why other.bin run.html -o run.html"],
    "view": ["view run.html -o run.html", "view other.bin run.html -o run.html", "view --lines run.html -o link.html"],
}
NO_INPUT = {"attach", "profile", "record"}
# Verbs that need no -o: they write a file with a default name, or print to stdout.
NO_OUTPUT = {
    "attach",
    "diff",
    "golden create",
    "profile",
    "record",
    "report trend",
    "sql",
    "stats",
    "view",
    "why",
}


def test_every_verb_that_writes_is_tried_with_an_input_as_output():
    verbs = dict(_commands(cli, ""))
    assert {name for name, verb in verbs.items() if any(p.name == "output" for p in verb.params)} == (
        set(OVER_AN_INPUT) | NO_INPUT
    )


def test_a_verb_that_needs_an_output_asks_for_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, lines in OVER_AN_INPUT.items():
        if name not in NO_OUTPUT:
            words = shlex.split(lines[0])
            at = words.index("-o")
            done = cutrace(*words[:at], *words[at + 2 :])
            assert (done.returncode, done.stdout) == (2, "")
            assert done.stderr == f"cutrace: Missing option '-o' / '--output'. See `cutrace {name} --help`.\n"


def _commands(group, prefix):
    for name in group.list_commands(click.Context(group)):
        command = group.get_command(click.Context(group), name)
        if isinstance(command, click.Group):
            yield from _commands(command, f"{prefix}{name} ")
        else:
            yield f"{prefix}{name}", command


@pytest.mark.parametrize("line", [line for lines in OVER_AN_INPUT.values() for line in lines])
def test_an_output_that_is_an_input_is_refused(line, tmp_path, monkeypatch):
    here = tmp_path / "here"
    (here / "parquet").mkdir(parents=True)
    monkeypatch.chdir(here)
    for name in ("run.html", "run.json", "run.tar", "other.bin", "kernels.html", "kernels.manifest.json", "parquet/a"):
        small_capture(here / name)
    (here / "link.html").symlink_to("run.html")
    before = {path: path.is_file() and path.read_bytes() for path in tmp_path.rglob("*")}
    done = cutrace(*shlex.split(line))
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert "is an input. Choose another name." in done.stderr
    assert {path: path.is_file() and path.read_bytes() for path in tmp_path.rglob("*")} == before


@pytest.mark.parametrize(
    ("error", "sentence"),
    [
        ("MemoryError()", "there is not enough memory"),
        ("ImportError('libblas.so: failed to map segment from shared object')", "there is not enough memory"),
        ("OSError(28, 'No space left on device')", "Set TMPDIR to a folder with room."),
        ("OSError(28, 'No space left on device', '/a/file')", "No space left on device: /a/file"),
    ],
)
def test_what_the_machine_lacks_is_one_sentence(tmp_path, capsys, monkeypatch, error, sentence):
    def fail(path):
        raise eval(error)

    monkeypatch.setattr("cutrace.loading.load_capture", lambda *_: fail(_))
    with pytest.raises(SystemExit) as end:
        main(["info", str(small_capture(tmp_path / "a.bin"))])
    assert end.value.code == 2
    message = capsys.readouterr().err
    assert message.startswith("cutrace: ")
    assert sentence in message
    assert message.count("\n") == 1


def test_little_memory_is_one_sentence_and_status_2(tmp_path):
    with Writer(tmp_path / "a.bin", pid=1) as writer:
        start = np.arange(1, 1_000_000)
        writer.rows("nvtx_ranges", rows("nvtx_ranges", len(start), start=start, end=start + 5))
    program = (
        "import resource, sys, cutrace.api\n"
        "from cutrace.cli import main\n"
        "pages = int(open('/proc/self/statm').read().split()[0])\n"
        "limit = pages * resource.getpagesize() + (16 << 20)\n"
        "resource.setrlimit(resource.RLIMIT_AS, (limit, limit))\n"
        "main(sys.argv[1:])\n"
    )
    command = [sys.executable, "-c", program, "stats", tmp_path / "a.bin"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 2
    assert done.stderr.startswith("cutrace: there is not enough memory")
    assert done.stderr.count("\n") == 1


def test_a_mistake_in_cutrace_is_not_hidden(tmp_path, monkeypatch):
    monkeypatch.setattr("cutrace.loading.load_capture", lambda *_: import_module("no_such_module"))
    with pytest.raises(ModuleNotFoundError):
        main(["info", str(small_capture(tmp_path / "a.bin"))])


def test_the_status_is_2_where_stderr_takes_no_sentence():
    command = f"{sys.executable} -m cutrace fly 2>/dev/full"
    assert subprocess.run(["sh", "-c", command], timeout=60).returncode == 2


def test_a_folder_that_was_removed_is_one_sentence(tmp_path):
    command = f"mkdir gone; cd gone; rmdir ../gone; exec {sys.executable} -m cutrace golden check"
    done = subprocess.run(["sh", "-c", command], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.endswith("cutrace: the current folder does not exist any more: change to another one\n")


def test_an_interrupt_ends_the_line_of_the_terminal_once(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    command = [sys.executable, "-m", "cutrace", "golden", "check", "--collected", str(tmp_path / "pipe")]
    with subprocess.Popen(command, stderr=subprocess.PIPE, cwd=tmp_path) as process:
        writer = os.open(tmp_path / "pipe", os.O_WRONLY)  # returns once the command reads
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=60) == 130
        assert process.stderr.read() == b"\n"
        os.close(writer)


def test_colours_are_for_terminals_that_want_them():
    for variables, coloured in (({}, True), ({"NO_COLOR": "1"}, False), ({"TERM": "dumb"}, False)):
        shown = on_a_terminal("fly", status=2, **{"TERM": "xterm", **variables})
        assert ("\x1b[" in shown) is coloured
        assert "No such command 'fly'" in shown


@pytest.mark.parametrize(
    "arguments", [("slice", "-o", "b.bin", "--nvtx", "no"), ("stats", "--report", "step_sum", "--name", "no")]
)
def test_names_in_errors_do_not_control_a_terminal(tmp_path, arguments):
    with Capture(tmp_path / "a.bin") as c:
        c.push_pop("\x1b[31mred\nrow\x07\u202e", 10, 20)
    verb, *options = arguments
    shown = on_a_terminal(verb, "a.bin", *options, status=2, cwd=tmp_path, NO_COLOR="1")
    assert "\ufffd[31mred\ufffdrow\ufffd\ufffd" in shown
    assert "\x1b" not in shown
    assert shown.count("\n") == 1


def test_a_sentence_names_the_argument_in_python_and_the_option_on_the_command_line(tmp_path):
    path = small_capture(tmp_path / "run.bin")
    with pytest.raises(CutraceError) as raised:
        stats(path, "gpu_sum", kernel_wait="1us")
    assert "gpu_sum does not use `kernel_wait=`: leave it out" in str(raised.value)
    done = cutrace("stats", path, "--report", "gpu_sum", "--kernel-wait", "1us")
    assert "gpu_sum does not use --kernel-wait: leave it out" in done.stderr
    assert as_options("give `name='step *'` or `capture=True`") == "give --name 'step *' or --capture"
