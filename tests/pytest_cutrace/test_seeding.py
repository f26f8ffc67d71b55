"""Random generators have the same state for a test in any order and in any worker."""

from __future__ import annotations

import pytest

from support.suites import Suite

PROGRAM = """
import random
import numpy as np

DRAWN = [int(np.random.randint(1 << 30)), random.randrange(1 << 30)]
RUNS = {}

def told(request, *more):
    name = request.node.name
    RUNS[name] = RUNS.get(name, 0) + 1
    values = [*DRAWN, *more, random.randrange(1 << 30), int(np.random.randint(1 << 30))]
    with open(f"drawn.{os.getpid()}.txt", "a") as file:
        print(request.node.nodeid, RUNS[name], *values, file=file)

@pytest.fixture(scope="module", params=[1, 2])
def shared(request):
    return random.randrange(1 << 30)

@pytest.fixture
def own():
    return random.randrange(1 << 30)

@pytest.mark.cutrace(repeat=2)
@pytest.mark.parametrize("n", range(4))
def test_it(request, n, shared, own):
    fakegpu.launch("k")
    told(request, shared, own)
"""


@pytest.fixture
def drawing(suite: Suite) -> Suite:
    suite.write("test_a.py", PROGRAM)
    suite.write("test_b.py", PROGRAM)
    return suite


def drawn(suite: Suite, *options: str, **how: tuple[str, ...]) -> dict[tuple[str, str], list[str]]:
    """The random values of the tests of a session, by test and run."""
    done = suite.run("--cutrace", *options, **how)
    assert done.status == 0, done.output
    found = {}
    for path in suite.folder.glob("drawn.*.txt"):
        for line in path.read_text().splitlines():
            name, run, *values = line.split()
            found[name, run] = values
        path.unlink()
    return found


def test_draws_are_the_same_in_each_run_order_and_worker(drawing: Suite) -> None:
    plain = drawn(drawing)
    assert len(plain) == 2 * 8 * 2
    for (name, run), values in plain.items():
        assert run == "1" or plain[name, "1"] == values, "a second run draws what the first one drew"
    draws = {tuple(values[:2]) for values in plain.values()}
    assert len(draws) == 2, "each module draws its own"
    assert len({tuple(values[-2:]) for values in plain.values()}) == 16, "each test draws its own"
    assert drawn(drawing, "-n", "2", plugins=("xdist",)) == plain
    alone = drawn(drawing, "test_b.py::test_it[2-3]")
    assert len(alone) == 2
    assert alone.items() <= plain.items()


def test_seeding_can_be_switched_off(drawing: Suite) -> None:
    one, other = drawn(drawing, "-o", "cutrace_seed=off"), drawn(drawing, "-o", "cutrace_seed=off")
    assert all(one[key] != other[key] for key in one)


def test_without_the_option_nothing_is_seeded(drawing: Suite) -> None:
    values = []
    for _ in range(2):
        assert drawing.run("-k", "test_a").status == 0
        (path,) = drawing.folder.glob("drawn.*.txt")
        values.append(path.read_text())
        path.unlink()
    assert values[0] != values[1]


def test_the_seed_of_pytest_randomly_holds(drawing: Suite) -> None:
    options, plugins = ("--randomly-dont-reorganize",), ("randomly",)
    one, same, other = (drawn(drawing, *options, f"--randomly-seed={n}", plugins=plugins) for n in (1, 1, 2))
    assert one == same
    assert all(one[key] != other[key] for key in one)
    assert all(one[name, "1"] == values for (name, _), values in one.items()), "a second run is seeded like the first"
    plugin_alone = drawing.run(*options, "--randomly-seed=1", "test_a.py", plugins=plugins)
    assert plugin_alone.status == 0
    (path,) = drawing.folder.glob("drawn.*.txt")
    name, run, *values = path.read_text().splitlines()[0].split()
    assert one[name, run][-2:] == values[-2:], "the body draws what it draws without cutrace"


def test_a_generator_that_is_loaded_late_is_seeded_then(suite: Suite) -> None:
    suite.write("test_a.py", """
        def test_it(request):
            import numpy.random
            assert numpy.random.__spec__.loader is numpy.random.__loader__
            assert type(numpy.random.__loader__).__module__ != "pytest_cutrace.seeding"
            with open(f"drawn.{os.getpid()}.txt", "a") as file:
                print(request.node.nodeid, 1, numpy.random.randint(1 << 30), file=file)
    """)  # fmt: skip
    assert drawn(suite) == drawn(suite)


def test_torch_and_cupy_are_seeded_only_as_far_as_they_are_in_use(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys
    from types import SimpleNamespace

    from pytest_cutrace import seeding

    seeds: dict[str, int] = {}

    def generator(name: str) -> SimpleNamespace:
        return SimpleNamespace(manual_seed=lambda number: seeds.update({name: number}))

    cuda = SimpleNamespace(is_initialized=lambda: False, default_generators=(generator("cuda"),))
    torch = SimpleNamespace(default_generator=generator("cpu"), cuda=cuda)
    states: dict[int, object] = {}
    cupy = SimpleNamespace(random=SimpleNamespace(seed=lambda number: seeds.update(cupy=number)))
    monkeypatch.setitem(sys.modules, "torch", torch)
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    monkeypatch.setitem(sys.modules, "cupy.random._generator", SimpleNamespace(_random_states=states))
    for seed in (seeding._seed_torch, seeding._seed_cupy):
        seed(7)
    assert seeds == {"cpu": 7}
    cuda.is_initialized = lambda: True
    states[0] = object()
    for seed in (seeding._seed_torch, seeding._seed_cupy):
        seed(8)
    assert seeds == {"cpu": 8, "cuda": 8, "cupy": 8}
