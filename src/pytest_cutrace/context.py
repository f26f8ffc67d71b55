"""What a session knows about its tests: their ids, folders and environments."""

from __future__ import annotations

import functools
import os
from collections import defaultdict
from pathlib import Path

import pytest

from cutrace.analysis.definitions import Metrics
from cutrace.golden import artifact_path, environment, joined, split, variant
from cutrace.golden.decide import GateSettings

from .neighbours import without_repetition
from .options import Settings
from .report import argument, without_group
from .seeding import Seeds

#: The number of tests of a cause whose artifacts are kept.
_KEPT = 10


class SessionContext:
    """The settings of a session, and the facts that follow from them and from pytest's configuration."""

    def __init__(self, config: pytest.Config, settings: Settings) -> None:
        self.config = config
        self.settings = settings
        self.gate = GateSettings(
            settings.update, settings.scope, config.invocation_params.dir
        )
        self.seeds = Seeds(config, self.golden_id) if settings.seed else None
        #: The environment of the last run with a known GPU.
        self._environment = ""
        self._variant = functools.cache(self._variant_of)
        #: Whether a file of ids exists. An id stays the same if its test removes the file.
        self._in_rootdir = functools.cache(self._is_in_rootdir)
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
        """The id of a test, without the group that pytest-xdist appends. Its file is relative to the rootdir, or to the
        folder of its package if that is elsewhere: pytest shortens ids of ``--pyargs`` until two are the same."""
        nodeid = item.nodeid
        if self.worker and getattr(self.config.option, "loadgroup", False):
            nodeid = without_group(nodeid)
        file, test = split(nodeid)
        if not file or self._in_rootdir(file):
            return nodeid
        return joined(self._file_of(item.path), test)

    def _is_in_rootdir(self, file: str) -> bool:
        return (self.config.rootpath / file).exists()

    def _file_of(self, path: Path) -> str:
        """The name of a test file in ids."""
        root = self.config.rootpath
        if not path.is_relative_to(root):
            root = path.parent
            while (root / "__init__.py").exists():
                root = root.parent
        return path.relative_to(root).as_posix()

    def golden_id(self, item: pytest.Item) -> str:
        """The id of a test in golden files, which all of its repetitions share."""
        return without_repetition(item, self.nodeid(item))

    def argument(self, item: pytest.Item) -> str:
        """The id of a test as an argument of pytest in the folder where it was started."""
        return argument(self.golden_id(item), self.config)

    def folder(self, item: pytest.Item) -> Path:
        """The folder of the artifacts of a test."""
        return artifact_path(self.settings.directory / "tests", self.nodeid(item))

    def _relative(self, path: Path) -> str:
        """A path relative to the folder where pytest was started."""
        return os.path.relpath(path, self.config.invocation_params.dir)

    def keeps(self, nodeid: str, cause: str, *, failed: bool) -> bool:
        """Whether to keep the artifacts of a test. Of failed tests, only the first ones of a cause keep them."""
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
