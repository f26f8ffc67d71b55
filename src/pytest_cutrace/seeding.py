"""Seeds random generators from what is run, so that what ran before does not matter.

Suites draw data types and values while their modules are imported, in fixtures and in tests. What a test does on the
GPU follows from them, so they have to be the same in each run, in each worker and on each machine.

Nothing here imports a library or initialises CUDA: what is not loaded has no state yet. A generator that is loaded
later is seeded when its module has been imported.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import sys
from collections.abc import Callable, Iterator, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

import pytest


class Seeds:
    """Seeds the generators before a module is imported, a fixture is set up and a test is run. A plugin of pytest.

    ``name`` gives the id of a test.
    """

    def __init__(self, config: pytest.Config, name: Callable[[pytest.Item], str]) -> None:
        self._config = config
        self._name = name
        self._current = ""
        self._arrivals = _Arrivals(self._arrived)
        sys.meta_path.insert(0, self._arrivals)
        self.sow("")

    def close(self) -> None:
        if self._arrivals in sys.meta_path:
            sys.meta_path.remove(self._arrivals)

    def sow(self, identity: str) -> None:
        """Seed all generators that are loaded from this text."""
        self._current = identity
        number = self._number()
        for seed in _GENERATORS.values():
            seed(number)

    def body(self, item: pytest.Item, *, again: bool = False) -> None:
        """Seed for a run of the body of a test. pytest-randomly seeds the first run itself."""
        self.sow(self._name(item))
        if again and (randomly := self._randomly()) is not None:
            randomly.pytest_runtest_call(item)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_make_collect_report(self, collector: pytest.Collector) -> Iterator[None]:
        # Collecting a file imports it, collecting a folder imports its conftest.
        self.sow(collector.nodeid)
        return (yield)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> Iterator[None]:
        self.sow(f"{self._name(item)} setup")
        return (yield)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_fixture_setup(self, fixturedef: Any, request: Any) -> Iterator[None]:
        """A fixture that several tests share draws the same numbers whichever of them is the first."""
        if fixturedef.scope == "function":
            return (yield)
        before = self._current
        self.sow(f"{fixturedef.baseid}::{fixturedef.argname}[{getattr(request, 'param_index', 0)}] fixture")
        try:
            return (yield)
        finally:
            self.sow(before)

    def _number(self) -> int:
        """32 bits that follow from the identity, and from the seed of pytest-randomly where that is active."""
        seed = getattr(self._config.option, "randomly_seed", None) if self._randomly() is not None else None
        text = f"{seed} {self._current}" if isinstance(seed, int) else self._current
        digest = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=4).digest()
        return int.from_bytes(digest, "little")

    def _randomly(self) -> Any:
        plugins = self._config.pluginmanager
        return plugins.get_plugin("randomly") or plugins.get_plugin("pytest_randomly")

    def _arrived(self, module: str) -> None:
        _GENERATORS[module](self._number())


def _seed_random(number: int) -> None:
    if (random := sys.modules.get("random")) is not None:
        random.seed(number)


def _seed_numpy(number: int) -> None:
    if (seed := getattr(sys.modules.get("numpy.random"), "seed", None)) is not None:
        seed(number)


def _seed_torch(number: int) -> None:
    torch = sys.modules.get("torch")
    if (generator := getattr(torch, "default_generator", None)) is None:
        return
    generator.manual_seed(number)
    cuda = getattr(torch, "cuda", None)
    if cuda is not None and cuda.is_initialized():
        for generator in cuda.default_generators:
            generator.manual_seed(number)


def _seed_cupy(number: int) -> None:
    # There is a generator for each device that has drawn. Seeding creates one, which would initialise CUDA.
    if getattr(sys.modules.get("cupy.random._generator"), "_random_states", None):
        with contextlib.suppress(Exception):  # a device that an earlier test has broken
            sys.modules["cupy"].random.seed(number)


#: What seeds a generator, by the module that brings it.
_GENERATORS: dict[str, Callable[[int], None]] = {
    "random": _seed_random,
    "numpy.random": _seed_numpy,
    "torch": _seed_torch,
    "cupy": _seed_cupy,
}


class _Arrivals(MetaPathFinder):
    """Calls ``then`` with the name of a generator's module once that has been imported."""

    def __init__(self, then: Callable[[str], None]) -> None:
        self._then = then
        self._looking = False

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name not in _GENERATORS or self._looking:
            return None
        self._looking = True
        try:
            spec = importlib.util.find_spec(name)
        finally:
            self._looking = False
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader, self._then)
        return spec


class _Loader(Loader):
    """The loader of a module, with something to do afterwards. The module keeps the loader that it should have."""

    def __init__(self, loader: Loader, then: Callable[[str], None]) -> None:
        self._loader = loader
        self._then = then

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        module.__loader__ = self._loader
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        self._loader.exec_module(module)
        self._then(module.__name__)
