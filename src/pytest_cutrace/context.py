"""The facts of a session about its tests: their ids, folders and environments."""

from __future__ import annotations

import functools
import importlib.util
import os
import shlex
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import pytest

from cutrace.analysis.definitions import Metrics
from cutrace.golden import artifact_path, environment, joined, split, variant
from cutrace.golden.decide import GateSettings
from cutrace.units import printable

from .neighbours import without_repetition
from .options import Settings, finding_options
from .seeding import Seeds

#: The number of tests of a cause whose artifacts are kept.
_KEPT = 10


class SessionContext:
    """The settings of a session, and the facts that follow from them and from pytest's configuration."""

    def __init__(self, config: pytest.Config, settings: Settings) -> None:
        self.config = config
        self.settings = settings
        #: The folder of the artifacts of all tests.
        self.artifacts = settings.directory / "tests"
        self.gate = GateSettings(
            settings.update, settings.scope, config.invocation_params.dir
        )
        self.seeds: Seeds | None = None
        if settings.seed:
            self.seeds = Seeds(config, self.golden_id)
        #: The environment of the last run with a known GPU.
        self._environment = ""
        self._variant = functools.cache(self._variant_of)
        #: Ids are kept, so that an id does not change if its test removes the file.
        self._outside = functools.cache(self._outside_file)
        self.relative = functools.cache(self._relative)
        #: The ids of the failed tests of each cause in this process, in the order of their failures.
        self.failures = defaultdict[str, dict[str, None]](dict)
        #: The tests whose artifacts are kept, by cause.
        self._kept: dict[str, set[str]] = {}

    @property
    def worker(self) -> str:
        """The name of this worker of pytest-xdist, "" if this process is no worker."""
        return str(getattr(self.config, "workerinput", {}).get("workerid", ""))

    def nodeid(self, item: pytest.Item) -> str:
        """The id of a test, without the group that pytest-xdist appends. pytest shortens ids of files outside of the
        rootdir, and different files can get the same id. The paths of these files are relative to one of
        :func:`id_folders` instead."""
        nodeid = item.nodeid
        if self.worker and getattr(self.config.option, "loadgroup", False):
            nodeid = without_group(nodeid)
        file = self._outside(item.path)
        if not file:
            return nodeid
        _, test = split(nodeid)
        return joined(file, test)

    def _outside_file(self, path: Path) -> str:
        """The name of a test file outside of the rootdir in ids, "" for others."""
        root, *others = id_folders(self.config)
        if path.is_relative_to(root) or not path.is_file():
            return ""
        for folder in others:
            if path.is_relative_to(folder):
                return path.relative_to(folder).as_posix()
        return Path(os.path.relpath(path, root)).as_posix()

    def golden_id(self, item: pytest.Item) -> str:
        """The id of a test in golden files. All repetitions of the test share it."""
        return without_repetition(item, self.nodeid(item))

    def arguments(self, item: pytest.Item) -> str:
        """The arguments with which pytest runs a test, quoted."""
        nodeid = self.golden_id(item)
        words = [argument(nodeid, self.config)]
        return quoted(words, self.config)

    def folder(self, item: pytest.Item) -> Path:
        """The folder of the artifacts of a test."""
        return artifact_path(self.artifacts, self.nodeid(item))

    def _relative(self, path: Path) -> str:
        """A path relative to the folder where pytest was started."""
        return os.path.relpath(path, self.config.invocation_params.dir)

    def keeps(self, nodeid: str, cause: str, *, failed: bool) -> bool:
        """Whether to keep the artifacts of a test. Only the first failed tests of a cause keep them."""
        if self.settings.keep != "failed" or not failed:
            return self.settings.keep == "all"
        if not cause:
            return True
        kept = self._kept.setdefault(cause, set())
        if len(kept) < _KEPT:
            kept.add(nodeid)
        return nodeid in kept

    def environment(self, item: pytest.Item, run: Metrics) -> str:
        """The environment of a run. A run without GPU work has the environment of an earlier run."""
        if not run.facts.get("compute capability"):
            return self._environment
        custom = item.ihook.pytest_cutrace_environment(
            item=item, names=run.gpus, facts=run.facts
        )
        if custom is None:
            self._environment = environment(
                run, self._variant(run.facts.get("cuda", ""))
            )
        else:
            self._environment = str(custom)
        return self._environment

    def seed_setup(self, item: pytest.Item) -> None:
        """Seed the random generators before the fixtures of a test are set up again."""
        if self.seeds is not None:
            self.seeds.setup(item, again=True)

    def seed(self, item: pytest.Item, *, again: bool = False) -> None:
        """Seed the random generators before a run of the body of a test."""
        if self.seeds is not None:
            self.seeds.body(item, again=again)

    def _variant_of(self, cuda: str) -> str:
        return variant(self.settings.variant, {"cuda": cuda})


@functools.lru_cache(maxsize=1)
def id_folders(config: pytest.Config) -> tuple[Path, ...]:
    """The folders that files in ids are relative to: the rootdir, and the folders of packages of ``--pyargs``."""
    root = config.rootpath
    folders = [root, root.resolve()]
    words = []
    if config.option.pyargs:
        words = config.args
    for word in words:
        module, _, _ = word.partition("::")
        package, _, _ = module.partition(".")
        place = module_place(package)
        if place is not None:
            folders.append(place.parent)
    return tuple(folders)


def module_place(name: str) -> Path | None:
    """The file or the folder of a module, without an import; None if Python does not find the module."""
    package, *rest = name.split(".")
    try:
        spec = importlib.util.find_spec(package)
    except (ImportError, ValueError):
        return None
    if spec is None or not spec.origin:
        return None
    place = Path(os.path.normpath(spec.origin))
    if spec.submodule_search_locations:
        place = place.parent.joinpath(*rest)
    if place.is_dir():
        return place
    return place.with_suffix(".py")


def argument(nodeid: str, config: pytest.Config) -> str:
    """The id of a test as an argument of pytest, in the folder where pytest was started."""
    file, test = split(nodeid)
    root, _, *packages = id_folders(config)
    path = root / file
    named = os.path.relpath(path, config.invocation_params.dir)
    if not path.exists():
        for folder in packages:
            if (folder / file).exists():
                module = file.removesuffix(".py")
                named = module.replace("/", ".")
    return joined(named, test)


def quoted(arguments: Sequence[str], config: pytest.Config) -> str:
    """Arguments of pytest, quoted for a shell, after the options that pytest needs to find their tests."""
    words = [*finding_options(config), *arguments]
    return shlex.join(map(printable, words))


def without_group(nodeid: str) -> str:
    """An id without the group that pytest-xdist appends with ``--dist loadgroup``."""
    # Folders and parameters may contain the character.
    start = max(nodeid.rfind("::"), nodeid.rfind("]"))
    group = nodeid.rfind("@")
    if group > start:
        return nodeid[:group]
    return nodeid
