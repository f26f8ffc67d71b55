"""The options and ini values of the plugin, and the settings of a session."""

from __future__ import annotations

import argparse
import os
import re
import shlex
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import pytest

if TYPE_CHECKING:
    from cutrace.golden import Rules, Update

T = TypeVar("T")

_REPORTS = {"json": "report.json", "markdown": "report.md", "html": "report.html"}
_YES = ("1", "true", "yes", "on")
_NO = ("", "0", "false", "no", "off")
_UPDATE = "--cutrace-update="
#: Options with which pytest shows something instead of running tests.
_SHOWING = (
    "help",
    "version",
    "markers",
    "showfixtures",
    "show_fixtures_per_test",
    "cacheshow",
)

#: Options with a value: name without ``cutrace-``, metavar, type of the ini value, help.
_VALUES: tuple[tuple[str, str, str, str], ...] = (
    (
        "dir",
        "DIR",
        "string",
        "folder for traces, reports and candidates of golden files (default: .cutrace)",
    ),
    (
        "keep",
        "{all,failed,none}",
        "string",
        "tests whose capture and trace are kept (default: failed)",
    ),
    (
        "gate",
        "NAMES",
        "string",
        "metrics and classes that fail a test, or none (default: work,counter)",
    ),
    (
        "tolerance",
        "SHARES",
        "linelist",
        "tolerances by metric or class, such as kernel_launches=10%%,time=5%%",
    ),
    (
        "ignore",
        "NAMES",
        "linelist",
        "metrics and kernels to ignore, such as kernels:nccl*,allocations",
    ),
    (
        "less",
        "{show,fail}",
        "string",
        "whether less work than in the golden file fails a test (default: show)",
    ),
    ("repeat", "N", "string", "run each test N times and compare all runs"),
    (
        "seed",
        "{on,off}",
        "string",
        "seed random generators from the test's id before each run (default: on)",
    ),
    ("top", "N", "string", "list the N tests with the most kernel time"),
)
_INI: tuple[tuple[str, str, Any, str], ...] = (
    ("cutrace_golden_dir", "string", "golden", "folder of golden files, relative to the rootdir"),
    ("cutrace_variant", "string", "", "versions that golden values depend on, such as cuda{cuda}-torch{torch}"),
    ("cutrace_own_kernels", "linelist", [], "patterns of the project's own kernels, which are the same on every GPU"),
    ("cutrace_scope", "string", "existing", "tests to compare: marked, existing (with golden values), all"),
    ("cutrace_junit", "string", "false", "add metrics to the JUnit file as properties"),
    ("verbosity_cutrace", "string", "auto", "verbosity of cutrace's section of the terminal summary"),
)  # fmt: skip


def add(parser: pytest.Parser, given: Iterable[str] = ()) -> None:
    """Define the options and their ini values. An option defaults to None, which selects the ini value.

    ``given`` are the arguments of this run. Each ``--cutrace-update=VALUE`` or ``--cutrace=VALUE`` among them becomes a
    separate flag, because an optional value would take the path after ``--cutrace-update``.
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
        "trace the GPU work of tests, and compare those with golden values or the marker",
    )
    flag(
        "--cutrace=require",
        "require",
        "the same, and exit with status 4 if a test could not be verified",
    )
    flag("--cutrace=off", "off", "trace nothing, whatever the ini value cutrace says")
    flag(
        "--cutrace-update", "changed",
        "trace tests and write missing and changed golden values. --cutrace-update=NAMES takes one of missing, "
        "changed, all, widen, and the metrics or classes to update, separated by commas",
    )  # fmt: skip
    for word in dict.fromkeys(
        word for word in given if word.startswith((_UPDATE, "--cutrace="))
    ):
        if word not in ("--cutrace=require", "--cutrace=off"):  # defined above
            flag(word, word.partition("=")[2], argparse.SUPPRESS)
    flag(
        "--cutrace-strict",
        "true",
        "also fail on less work, new metrics and missing golden values of marked tests",
    )
    group.addoption(
        "--cutrace-report", action="append", default=None, dest="cutrace_report", metavar="KIND[:DEST]",
        help="write a report: json, markdown or html; may be given several times",
    )  # fmt: skip
    for name, metavar, kind, text in _VALUES:
        group.addoption(
            f"--cutrace-{name}",
            default=None,
            dest=f"cutrace_{name}",
            metavar=metavar,
            help=text,
        )
        about = f"--cutrace-{name}: {text}".replace("%%", "%")
        parser.addini(f"cutrace_{name}", about, kind, [] if kind == "linelist" else "")  # type: ignore[arg-type]
    parser.addini("cutrace", "--cutrace: true, or require", "string", "")
    parser.addini(
        "cutrace_update",
        "the value of --cutrace-update, in runs with --cutrace",
        "string",
        "",
    )
    parser.addini("cutrace_strict", "--cutrace-strict: true or false", "string", "")
    parser.addini(
        "cutrace_report", "--cutrace-report: KIND[:DEST], one per line", "linelist", []
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
    except (AttributeError, KeyError, ValueError):  # the ini file is not loaded yet
        before = []
    return [*before, *map(str, config.invocation_params.args)]


def known(config: pytest.Config) -> Any:
    """The options of a run that have been read so far."""
    return getattr(config, "known_args_namespace", config.option)


def wanted(config: pytest.Config) -> bool:
    """Whether this run is traced. Otherwise nothing else of the plugin is loaded."""
    options = known(config)
    if any(getattr(options, name, None) for name in _SHOWING):
        return False
    if options.cutrace not in (None, "on", "require", "off"):
        raise pytest.UsageError(
            f"--cutrace={options.cutrace} is unknown: write --cutrace, --cutrace=require or --cutrace=off"
        )
    if options.cutrace == "off":
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
    top: int
    reports: tuple[tuple[str, Path], ...]
    golden_root: Path
    variant: str
    scope: str
    junit: bool


def read(config: pytest.Config) -> Settings:
    """Read the settings of a session. Raises :class:`pytest.UsageError` with the option, or the file and line of the
    ini value, that is invalid."""
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

    def get(name: str, parse: Callable[[Any], T]) -> T:
        """The parsed value of an option, or of the ini value if the option is not given."""
        value = getattr(known(config), name, None)
        try:
            return parse(config.getini(name) if value is None else value)
        except (CutraceError, ValueError) as error:
            if value is None:
                raise _ini_error(config, name, str(error)) from None
            raise pytest.UsageError(f"--{name.replace('_', '-')}: {error}") from None

    root = config.rootpath
    started = config.invocation_params.dir
    directory = get("cutrace_dir", lambda text: root / (text or ".cutrace"))
    strict = get("cutrace_strict", _boolean)
    rules = Rules(
        gate=get("cutrace_gate", lambda text: parse_gate(text or "work,counter")),
        tolerance=get("cutrace_tolerance", parse_tolerance),
        ignore=get("cutrace_ignore", parse_ignore),
        own=get("cutrace_own_kernels", parse_own),
        fail_less=get("cutrace_less", _choice("show", "fail")) == "fail" or strict,
        strict=strict,
    )
    return Settings(
        require=get("cutrace", lambda text: str(text).lower() == "require"),
        update=get("cutrace_update", lambda text: parse_update(text) if text else None),
        directory=directory,
        keep=get("cutrace_keep", _choice("all", "failed", "none", default="failed")),
        rules=rules,
        repeat=get("cutrace_repeat", lambda text: _number(text, 1) if text else None),
        seed=get("cutrace_seed", _choice("on", "off")) == "on",
        top=get("cutrace_top", lambda text: _number(text, 0) if text else 0),
        reports=get(
            "cutrace_report", lambda texts: tuple(_reports(texts, directory, started))
        ),
        golden_root=get("cutrace_golden_dir", lambda text: root / text),
        variant=get("cutrace_variant", check_variant),
        scope=get(
            "cutrace_scope", _choice("marked", "existing", "all", default="existing")
        ),
        junit=get("cutrace_junit", _boolean),
    )


def _ini_error(config: pytest.Config, name: str, message: str) -> pytest.UsageError:
    """An error about an ini value, with its file and line."""
    overridden = any(
        str(o).startswith(f"{name}=")
        for o in getattr(config.option, "override_ini", None) or ()
    )
    path = config.inipath
    if path is None or overridden:
        return pytest.UsageError(f"-o {name}: {message}")
    pattern = re.compile(rf'\s*"?{re.escape(name)}"?\s*=')
    lines = path.read_text(errors="replace").splitlines()
    number = next((at for at, line in enumerate(lines, 1) if pattern.match(line)), None)
    place = str(path) if number is None else f"{path}:{number}"
    return pytest.UsageError(f"{place}: {name}: {message}")


def _choice(*allowed: str, default: str = "") -> Callable[[str], str]:
    """A parser of one of these words. An empty text gives the default, which is the first word unless given."""

    def parse(text: str) -> str:
        word = str(text).strip().lower() or default or allowed[0]
        if word not in allowed:
            raise ValueError(f"{text!r} is unknown: write one of {', '.join(allowed)}")
        return word

    return parse


def _boolean(text: str) -> bool:
    word = str(text).strip().lower()
    if word not in (*_YES, *_NO):
        raise ValueError(f"{text!r} is unknown: write true or false")
    return word in _YES


def _number(text: str, least: int) -> int:
    if not re.fullmatch(r"[0-9]{1,6}", str(text).strip()) or int(text) < least:
        raise ValueError(f"{text!r} is not a number: write a number from {least} on")
    return int(text)


def _reports(
    texts: list[str], directory: Path, started: Path
) -> Iterator[tuple[str, Path]]:
    """The kinds and files of reports. Files are relative to the folder where pytest was started, as for --junitxml."""
    for word in (part.strip() for text in texts for part in text.split(",")):
        if not word:
            continue
        kind, _, destination = word.partition(":")
        if kind not in _REPORTS:
            raise ValueError(
                f"{kind!r} is not a kind of report: write one of {', '.join(_REPORTS)}"
            )
        if destination:
            yield kind, started / destination
        else:
            yield kind, directory / _REPORTS[kind]
