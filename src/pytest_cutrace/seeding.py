"""Seed random generators from the ids of tests, fixtures and modules, independent of earlier tests.

Suites draw random data types and values at the import of modules, in fixtures and in tests. The GPU work of a test
depends on them, so they must be the same in each run, in each worker and on each machine.

This module does not import libraries or initialise CUDA. A generator that is loaded later is seeded after its module is
imported.
"""

from __future__ import annotations

import contextlib
import hashlib
import random
import sys
from collections.abc import Callable, Iterator, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

import pytest


class Seeds:
    """A pytest plugin that seeds the generators before a module is imported, a fixture is set up or a test is run.

    ``name`` returns the id of a test.
    """

    def __init__(
        self, config: pytest.Config, name: Callable[[pytest.Item], str]
    ) -> None:
        self._config = config
        self._name = name
        self._current = ""
        #: The hook of pytest-randomly for this phase of a test.
        self._hook = ""
        sys.meta_path.insert(0, self)
        self.sow("")

    def close(self) -> None:
        if self in sys.meta_path:
            sys.meta_path.remove(self)

    def find_spec(
        self,
        name: str,
        path: Sequence[str] | None = None,
        target: ModuleType | None = None,
    ) -> ModuleSpec | None:
        """Wrap the loader of a generator's module, so that the generator is seeded after the import."""
        if name not in _GENERATORS:
            return None
        others = (
            finder.find_spec(name, path, target)
            for finder in sys.meta_path
            if finder is not self
        )
        spec = next(filter(None, others), None)
        loader: Any = spec and spec.loader
        if loader is not None:
            execute = loader.exec_module

            def execute_and_seed(module: ModuleType) -> None:
                del loader.exec_module
                execute(module)
                _GENERATORS[name](self._number())

            loader.exec_module = execute_and_seed
        return spec

    def sow(self, identity: str) -> None:
        """Seed all loaded generators from this string."""
        self._current = identity
        number = self._number()
        for seed in _GENERATORS.values():
            seed(number)

    def setup(self, item: pytest.Item, *, again: bool = False) -> None:
        """Seed before the function-scoped fixtures of a test are set up. The hooks of pytest-randomly seed only the
        first run."""
        self._hook = "pytest_runtest_setup"
        self.sow(f"{self._name(item)} setup")
        if again:
            self._seed_like_randomly(item)

    def body(self, item: pytest.Item, *, again: bool = False) -> None:
        """Seed before a run of the body of a test. The hooks of pytest-randomly seed only the first run."""
        self._hook = "pytest_runtest_call"
        self.sow(self._name(item))
        if again:
            self._seed_like_randomly(item)

    def _seed_like_randomly(self, item: pytest.Item) -> None:
        """Seed as pytest-randomly did at the start of this phase of a test."""
        randomly = self._randomly()
        if randomly is not None and self._hook:
            getattr(randomly, self._hook)(item)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_make_collect_report(self, collector: pytest.Collector) -> Iterator[None]:
        # Collecting a file imports it, collecting a folder imports its conftest.
        self.sow(collector.nodeid)
        return (yield)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> Iterator[None]:
        self.setup(item)
        return (yield)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_fixture_setup(self, fixturedef: Any, request: Any) -> Iterator[None]:
        """Seed shared fixtures from their own id, so that they do not depend on the first test that uses them."""
        if fixturedef.scope == "function":
            return (yield)
        before = self._current
        self.sow(
            f"{fixturedef.baseid}::{fixturedef.argname}[{getattr(request, 'param_index', 0)}] fixture"
        )
        try:
            return (yield)
        finally:
            self.sow(before)
            self._seed_like_randomly(request._pyfuncitem)

    def _number(self) -> int:
        """A number of 32 bits from the current id, and from the seed of pytest-randomly if it is active."""
        text = self._current
        seed = getattr(self._config.option, "randomly_seed", None)
        if isinstance(seed, int) and self._randomly() is not None:
            text = f"{seed} {text}"
        digest = hashlib.blake2b(
            text.encode("utf-8", "surrogatepass"), digest_size=4
        ).digest()
        return int.from_bytes(digest, "little")

    def _randomly(self) -> Any:
        plugins = self._config.pluginmanager
        return plugins.get_plugin("randomly") or plugins.get_plugin("pytest_randomly")


def _seed_numpy(number: int) -> None:
    seed = getattr(sys.modules.get("numpy.random"), "seed", None)
    if seed is not None:
        seed(number)


def _seed_torch(number: int) -> None:
    torch = sys.modules.get("torch")
    generator = getattr(torch, "default_generator", None)
    if generator is None:
        return
    generator.manual_seed(number)
    cuda = getattr(torch, "cuda", None)
    if cuda is not None and cuda.is_initialized():
        for generator in cuda.default_generators:
            generator.manual_seed(number)


def _seed_cupy(number: int) -> None:
    # Seed only existing generators, because creating one would initialise CUDA.
    if getattr(sys.modules.get("cupy.random._generator"), "_random_states", None):
        # An earlier test may have broken the device.
        with contextlib.suppress(Exception):
            sys.modules["cupy"].random.seed(number)


#: The functions that seed generators, by the generator's module.
_GENERATORS: dict[str, Callable[[int], None]] = {
    "random": random.seed,
    "numpy.random": _seed_numpy,
    "torch": _seed_torch,
    "cupy": _seed_cupy,
}
