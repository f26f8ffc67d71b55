"""The options and ini values of the plugin, and the settings of a session."""

from __future__ import annotations

import argparse
import os
import re
import shlex
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, TypeVar

import pytest

if TYPE_CHECKING:
    from cutrace.golden import Rules, Update

T = TypeVar("T")

#: The parser of pytest's arguments.
PARSER: pytest.StashKey[pytest.Parser] = pytest.StashKey()
_REPORTS = {"json": "report.json", "markdown": "report.md", "html": "report.html"}
#: The report that is part of the file of pytest's --junitxml.
_JUNIT = "junit"
_YES = ("1", "true", "yes", "on")
_NO = ("", "0", "false", "no", "off")
_UPDATE = "--cutrace-update="
#: The options with which pytest prints information and runs no tests.
_SHOWING = (
    "help",
    "version",
    "markers",
    "showfixtures",
    "show_fixtures_per_test",
    "cacheshow",
)

#: The options that continue at the test that failed last.
_STEPWISE = ("stepwise", "stepwise_skip", "stepwise_reset")
#: The options that select ini values, the rootdir, the kinds of tests, or the gated metrics.
_FINDING = {
    "inifilename": "-c",
    "rootdir": "--rootdir",
    "override_ini": "-o",
    "importmode": "--import-mode",
    "doctestmodules": "--doctest-modules",
    "doctestglob": "--doctest-glob",
    "pyargs": "--pyargs",
    "cutrace_gate": "--cutrace-gate",
}
#: Options with a value: name without ``cutrace-``, metavar, help.
_VALUES: tuple[tuple[str, str, str], ...] = (
    (
        "gate",
        "NAMES",
        "metrics and classes that fail a test, or none (default: work,counter); with less among them, less work fails "
        "it too; with code, other machine code",
    ),
    ("repeat", "N", "run each test N times and compare all runs"),
    (
        "keep",
        "{all,failed,none}",
        "tests whose run.bin, trace.pftrace and metrics.json are kept (default: failed, which includes tests without "
        "golden values)",
    ),
    (
        "dir",
        "DIR",
        "folder for traces, reports and candidates of golden files, from the rootdir (default: .cutrace)",
    ),
)
#: Ini values: name, type, default, help. Two of them have an option of the same name, which overrides them.
_INI: tuple[tuple[str, str, Any, str], ...] = (
    (
        "cutrace",
        "string",
        "",
        "as --cutrace, which overrides it: true, false or require",
    ),
    (
        "cutrace_gate",
        "string",
        "",
        "as --cutrace-gate, which overrides it",
    ),
    (
        "cutrace_tolerance",
        "linelist",
        [],
        "tolerances by metric or class, one a line, such as kernel_launches=10%; the tolerance of a total covers its "
        "breakdown",
    ),
    (
        "cutrace_ignore",
        "linelist",
        [],
        "what does not count, one a line: a metric, a class, or names of a breakdown, such as kernels:nccl*",
    ),
    (
        "cutrace_seed",
        "string",
        "on",
        "seed random generators from the test's id before each run: on, off",
    ),
    (
        "cutrace_scope",
        "string",
        "existing",
        "tests to compare: marked, existing (also tests with golden values), all (each test with GPU work)",
    ),
    (
        "cutrace_golden_dir",
        "string",
        "golden",
        "folder of golden files, relative to the rootdir",
    ),
    (
        "cutrace_variant",
        "string",
        "",
        "versions of CUDA and of packages that golden values depend on, such as cuda{cuda}-torch{torch}",
    ),
    (
        "cutrace_own_kernels",
        "linelist",
        [],
        "patterns of the project's own kernels, one a line; their golden values apply to every GPU",
    ),
    (
        "verbosity_cutrace",
        "string",
        "auto",
        "verbosity of the terminal summary of cutrace: -2 nothing, -1 counts and reasons, 1 notes of all tests",
    ),
)

#: The keywords of the marker ``cutrace``, with their meanings. All are optional.
MARKER = {
    "warmup": "runs that do not count",
    "repeat": "runs that are judged together",
    "gate": "metrics and classes that fail the test, as --cutrace-gate",
    "tolerance": "tolerances by metric or class, as the setting cutrace_tolerance, or a dict",
    "ignore": "what does not count, as the setting cutrace_ignore",
    "counters": "hardware counters to read: a name, or a list of names",
    "off": "True: do not trace the test, and leave CUPTI to others meanwhile",
    "may_skip": "True: a session with --cutrace=require may skip the test",
}
#: The keywords of the marker ``gpu_limit`` other than metrics.
LIMIT_MARKER = {
    "metric": "a metric by its name, with its upper limit, such as kernel_launches=3 or peak_memory='64 MiB'",
    "allow": "patterns of file:function or file:line whose calls may wait for the GPU",
    "reason": "why these calls may wait",
}
#: The lines of ``pytest --markers``.
MARKERS = (
    f"cutrace({', '.join(MARKER)}): compare the GPU work of the test with its golden values, by these rules "
    "(pytest --cutrace)",
    "gpu_limit(metric=limit, ..., allow, reason): limit the GPU work of the test, e.g. kernel_launches=3, "
    'peak_memory="64 MiB"; allow has places whose calls may wait (pytest --cutrace)',
)


def add(parser: pytest.Parser, given: Iterable[str] = ()) -> None:
    """Define the options and the ini values. An option defaults to None, which selects the ini value if there is one.

    ``given`` are the arguments of this run. Each ``--cutrace-update=VALUE`` or ``--cutrace=VALUE`` in them is defined
    as a flag. With an optional value, argparse would take a path after ``--cutrace-update`` as the value.
    """
    group = parser.getgroup("cutrace", "GPU traces and golden metrics (cutrace)")

    def flag(option: str, value: str, text: str) -> None:
        name = option.removeprefix("--").partition("=")[0].replace("-", "_")
        group.addoption(
            option,
            action="store_const",
            const=value,
            default=None,
            dest=name,
            help=text,
        )

    flag(
        "--cutrace",
        "on",
        "trace the GPU work of tests, and compare tests that have golden values or the marker",
    )
    flag(
        "--cutrace=require",
        "require",
        "as with on, and exit with status 4 if a test could not be verified",
    )
    flag("--cutrace=off", "off", "trace nothing, whatever the ini value cutrace says")
    flag(
        "--cutrace-update",
        "changed",
        "trace tests and write missing and changed golden values. --cutrace-update=NAMES takes one of missing, "
        "changed, all, and the metrics or classes to update, separated by commas",
    )
    for word in dict.fromkeys(
        word for word in given if word.startswith((_UPDATE, "--cutrace="))
    ):
        if word not in ("--cutrace=require", "--cutrace=off"):
            # These are defined above.
            flag(word, word.partition("=")[2], argparse.SUPPRESS)
    group.addoption(
        "--cutrace-report",
        action="append",
        default=None,
        dest="cutrace_report",
        metavar="KIND[:DEST]",
        help="write a report: json, markdown, html, or junit, which adds to the file of --junitxml; "
        "may be given several times",
    )
    for name, metavar, text in _VALUES:
        group.addoption(
            f"--cutrace-{name}",
            default=None,
            dest=f"cutrace_{name}",
            metavar=metavar,
            help=text,
        )
    for name, kind, default, text in _INI:
        parser.addini(name, text, kind, default)  # type: ignore[arg-type]


def arguments(config: pytest.Config | None) -> list[str]:
    """All arguments of a run while it reads its configuration."""
    if config is None:
        return []
    try:
        before = [
            *shlex.split(os.environ.get("PYTEST_ADDOPTS", "")),
            *config.getini("addopts"),
        ]
    except (AttributeError, KeyError, ValueError):  # The ini file is not loaded yet.
        before = []
    return [*before, *map(str, config.invocation_params.args)]


def on_command_line(config: pytest.Config) -> Any:
    """The options of the command line, without the options in the ini value ``addopts``."""
    words = shlex.split(os.environ.get("PYTEST_ADDOPTS", ""))
    words += map(str, config.invocation_params.args)
    return config.stash[PARSER].parse_known_args(words)


def deselected_by_addopts(
    config: pytest.Config, items: Sequence[pytest.Item]
) -> set[pytest.Item]:
    """The tests that the ini value ``addopts`` leaves out, although the command line alone would keep them."""
    chosen = on_command_line(config)
    kept = _kept(config, items, chosen)
    if _addopts_continues(config, chosen):
        return kept
    return kept - _kept(config, items, config.option)


def _kept(
    config: pytest.Config, items: Sequence[pytest.Item], options: Any
) -> set[pytest.Item]:
    """The tests that -k, -m and --deselect of these options keep."""
    kept = list(items)
    marks = config.pluginmanager.get_plugin("mark")
    if marks is not None:
        marks.pytest_collection_modifyitems(kept, _Selection(config, options))
    excluded = tuple(options.deselect or ())
    return {item for item in kept if not item.nodeid.startswith(excluded)}


class _Selection:
    """The configuration with other options. Its hook does nothing."""

    def __init__(self, config: pytest.Config, options: Any) -> None:
        self._config = config
        self.option = options
        self.hook = SimpleNamespace(pytest_deselected=lambda items: None)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._config, name)


def _addopts_continues(config: pytest.Config, chosen: Any) -> bool:
    """Whether ``addopts`` leaves out tests because others failed last, with --lf or --stepwise. ``chosen`` are the
    options of the command line."""
    plugins = config.pluginmanager
    continues = False
    failed_last: Any = plugins.get_plugin("lfplugin")
    if failed_last is not None and config.option.lf and not chosen.lf:
        continues = bool(failed_last.lastfailed)
    for name in _STEPWISE:
        if getattr(chosen, name, False):
            return continues
    stepwise: Any = plugins.get_plugin("stepwiseplugin")
    if stepwise is None:
        return continues
    if hasattr(stepwise, "cached_info"):  # Since pytest 8.4.
        failed = stepwise.cached_info.last_failed
    else:
        failed = stepwise.lastfailed
    return continues or bool(failed)


def finding_options(config: pytest.Config) -> list[str]:
    """The options of the command line that pytest needs to read the same ini values, find the tests and gate the same
    metrics."""
    chosen = on_command_line(config)
    defaults = config.stash[PARSER].parse_known_args([])
    words: list[str] = []
    for name, option in _FINDING.items():
        value = getattr(chosen, name, None)
        if value == getattr(defaults, name, None):
            continue
        if value is True:
            words.append(option)
        elif isinstance(value, str):
            words += [option, value]
        else:
            for one in value or ():
                words += [option, str(one)]
    return words


def known(config: pytest.Config) -> Any:
    """The options of a run that have been read so far."""
    return getattr(config, "known_args_namespace", config.option)


def wanted(config: pytest.Config) -> bool:
    """Whether this run is traced. If not, nothing else of the plugin is loaded."""
    options = known(config)
    if any(getattr(options, name, None) for name in _SHOWING):
        return False
    if options.cutrace not in (None, "on", "require", "off"):
        raise pytest.UsageError(
            f"--cutrace={options.cutrace} is unknown: write --cutrace, --cutrace=require or --cutrace=off"
        )
    if options.cutrace == "off":
        if options.cutrace_update is not None:
            raise pytest.UsageError(
                "--cutrace=off excludes --cutrace-update: write one of them"
            )
        return False
    if options.cutrace is not None or options.cutrace_update is not None:
        return True
    text = str(config.getini("cutrace")).strip().lower()
    if text not in (*_YES, *_NO, "require"):
        raise _ini_error(
            config, "cutrace", f"{text!r} is unknown: write true, false or require"
        )
    return text not in _NO


@dataclass(frozen=True)
class Settings:
    """The settings of a session."""

    require: bool
    update: Update | None
    directory: Path
    keep: str
    rules: Rules
    repeat: int | None
    seed: bool
    reports: tuple[tuple[str, Path], ...]
    golden_root: Path
    variant: str
    scope: str
    junit: bool


def read(config: pytest.Config) -> Settings:
    """Read the settings of a session. Raises :class:`pytest.UsageError` for an invalid value, with the option, or with
    the file and line of the ini value."""
    from cutrace.errors import CutraceError
    from cutrace.golden import (
        Rules,
        check_variant,
        parse_gate,
        parse_ignore,
        parse_own,
        parse_tolerance,
        parse_update,
    )

    def given(name: str, parse: Callable[[Any], T]) -> T:
        """The parsed value of an option; an option that is not given is ""."""
        try:
            return parse(getattr(known(config), name) or "")
        except (CutraceError, ValueError) as error:
            raise pytest.UsageError(f"--{name.replace('_', '-')}: {error}") from None

    def ini(name: str, parse: Callable[[Any], T]) -> T:
        try:
            return parse(config.getini(name))
        except (CutraceError, ValueError) as error:
            raise _ini_error(config, name, str(error)) from None

    def either(name: str, parse: Callable[[Any], T]) -> T:
        """The parsed value of an option, or of the ini value if the option is not given."""
        if getattr(known(config), name) is None:
            return ini(name, parse)
        return given(name, parse)

    root = config.rootpath
    # As for --junitxml.
    started = config.invocation_params.dir
    golden_root = ini("cutrace_golden_dir", lambda text: root / text)
    directory = given(
        "cutrace_dir", lambda text: _session_folder(text, root, golden_root)
    )
    reports = given("cutrace_report", _report_words)
    files = []
    for kind, destination in reports:
        if destination:
            files.append((kind, started / destination))
        elif kind in _REPORTS:
            files.append((kind, directory / _REPORTS[kind]))
    update = None
    if known(config).cutrace_update is not None:
        update = given("cutrace_update", parse_update)
    repeat = None
    if known(config).cutrace_repeat is not None:
        repeat = given("cutrace_repeat", lambda text: _number(text, 1))
    rules = Rules(
        gate=either("cutrace_gate", lambda text: parse_gate(text or "work,counter")),
        tolerance=ini("cutrace_tolerance", parse_tolerance),
        ignore=ini("cutrace_ignore", parse_ignore),
        own=ini("cutrace_own_kernels", parse_own),
    )
    kept = _choice("all", "failed", "none", default="failed")
    switch = _choice("on", "off")
    scope = _choice("marked", "existing", "all", default="existing")
    return Settings(
        require=either("cutrace", lambda text: str(text).lower() == "require"),
        update=update,
        directory=directory,
        keep=given("cutrace_keep", kept),
        rules=rules,
        repeat=repeat,
        seed=ini("cutrace_seed", switch) == "on",
        reports=tuple(files),
        golden_root=golden_root,
        variant=ini("cutrace_variant", check_variant),
        scope=ini("cutrace_scope", scope),
        junit=(_JUNIT, "") in reports,
    )


def _ini_error(config: pytest.Config, name: str, message: str) -> pytest.UsageError:
    """An error about an ini value, with its file and line."""
    path = config.inipath
    if path is None or _overridden(config, name):
        return pytest.UsageError(f"-o {name}: {message}")
    place = str(path)
    pattern = re.compile(rf'\s*"?{re.escape(name)}"?\s*=')
    lines = path.read_text(errors="replace").splitlines()
    for number, line in enumerate(lines, 1):
        if pattern.match(line):
            place = f"{path}:{number}"
            break
    return pytest.UsageError(f"{place}: {name}: {message}")


def _overridden(config: pytest.Config, name: str) -> bool:
    """Whether ``-o`` gives an ini value."""
    given = getattr(known(config), "override_ini", None) or ()
    return any(str(word).startswith(f"{name}=") for word in given)


def _choice(*allowed: str, default: str = "") -> Callable[[str], str]:
    """A parser of one of these words. An empty string gives the default. Without ``default`` it is the first word."""

    def parse(text: str) -> str:
        word = str(text).strip().lower() or default or allowed[0]
        if word not in allowed:
            raise ValueError(f"{text!r} is unknown: write one of {', '.join(allowed)}")
        return word

    return parse


def _session_folder(text: str, root: Path, golden_root: Path) -> Path:
    """The folder of a session. It must not contain files of the project, because git ignores its files. Its candidates
    must not be found as golden files."""
    folder = root / (text or ".cutrace")
    place = folder.resolve()
    golden = golden_root.resolve()
    wrong = ""
    if root.resolve().is_relative_to(place):
        wrong = "contains the rootdir"
    elif golden.is_relative_to(place):
        wrong = "contains the golden files"
    elif place.is_relative_to(golden):
        parts = place.relative_to(golden).parts
        # Hidden folders have no golden files.
        if not any(part.startswith(".") for part in parts):
            wrong = "is among the golden files"
    if wrong:
        raise ValueError(f"{folder} {wrong}: name another folder, such as .cutrace")
    return folder


def _number(text: str, least: int) -> int:
    if not re.fullmatch(r"[0-9]{1,6}", str(text).strip()) or int(text) < least:
        raise ValueError(f"{text!r} is not a number: write a number from {least} on")
    return int(text)


def _report_words(texts: Iterable[str]) -> list[tuple[str, str]]:
    """The kinds of reports with their files, "" for the default."""
    known = (*_REPORTS, _JUNIT)
    reports = []
    words = ",".join(texts).split(",")
    for word in filter(None, map(str.strip, words)):
        kind, _, destination = word.partition(":")
        if kind not in known:
            kinds = ", ".join(known)
            raise ValueError(f"{kind!r} is not a kind of report: write one of {kinds}")
        if kind == _JUNIT and destination:
            raise ValueError("junit takes no file: name it with --junitxml")
        reports.append((kind, destination))
    return reports
