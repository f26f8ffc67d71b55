"""Ranges around named functions, in programs of all Python versions on this machine."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import cutrace
from cutrace.collect import Options
from cutrace.collect.library import collector
from cutrace.errors import CutraceError
from support import cutrace as run_cutrace
from support.fakedriver import FakeDriver

#: A copy of the part of torch.nn that names of modules need. No other part may be used.
NN = """
class Module:
    def __init__(self, **modules):
        self._modules, self._parameters = modules, {}
    def __getattr__(self, name):
        return self.__dict__["_modules"][name]
    def named_modules(self):
        raise NotImplementedError
    def _wrapped_call_impl(self, *args):
        return self._call_impl(*args)
    def _call_impl(self, *args):
        return self.forward(*args)
    __call__ = _wrapped_call_impl
    def forward(self, x):
        for module in self._modules.values():
            x = module(x)
        return x
class ModuleList(Module):
    def __init__(self, *modules):
        super().__init__(**{str(i): module for i, module in enumerate(modules)})
class Linear(Module):
    def forward(self, x):
        return x + 1
class Block(Module):
    def __init__(self, **more):
        super().__init__(attention=Linear(), mlp=Linear(), **more)
class Transformer(Module):
    def __init__(self, *blocks):
        super().__init__(layers=ModuleList(*blocks), head=Linear())
    def forward(self, x):
        for block in self.layers._modules.values():
            x = block(x)
        return self.head(x)
class DistributedDataParallel(Module):
    pass
class OptimizedModule(Module):
    pass
"""


def interpreters() -> list[str]:
    """This interpreter, and one interpreter on this machine that has the other kind of hooks."""
    newer = sys.version_info < (3, 12)
    folders = [None, *map(str, Path("~/.pyenv/versions").expanduser().glob("3.*/bin"))]
    names = [f"python3.{minor}" for minor in (range(12, 16) if newer else range(10, 12))]
    paths = filter(None, (shutil.which(name, path=folder) for name in names for folder in folders))
    usable = (path for path in paths if subprocess.run([path, "-c", ""], capture_output=True).returncode == 0)
    return [sys.executable, *filter(None, [next(usable, "")])]


PYTHONS = interpreters()


@pytest.fixture(params=PYTHONS, ids=["this python", "other python"][: len(PYTHONS)])
def python(request: pytest.FixtureRequest) -> str:
    return str(request.param)


class Program:
    """A program that is recorded with ranges around functions."""

    def __init__(self, driver: FakeDriver, python: str, folder: Path) -> None:
        self.driver, self.python, self.folder = driver, python, folder
        (folder / "nn.py").write_text(NN)
        (folder / "lib").mkdir()
        (folder / "lib" / "__init__.py").write_text("")

    @property
    def version(self) -> tuple[int, ...]:
        code = "import sys; print(*sys.version_info[:2])"
        done = subprocess.run([self.python, "-c", code], capture_output=True, text=True)
        return tuple(map(int, done.stdout.split()))

    def module(self, name: str, text: str) -> None:
        (self.folder / "lib" / f"{name}.py").write_text(text)

    def record(self, text: str, *names: str, status: int = 0) -> str:
        """Record a program that uses CUDA from its first line on. Returns the output to stderr."""
        (self.folder / "program.py").write_text(f"import fakegpu; fakegpu.init()\n{text}")
        options = [word for name in names for word in ("--annotate", name)]
        env = self.driver.environment()
        command = [self.python, "program.py"]
        done = run_cutrace("record", *options, "--", *command, cwd=self.folder, env=env)
        assert done.returncode == status, done.stderr
        return done.stderr

    def ranges(self) -> list[str]:
        """The paths of the ranges in the order of their starts, thread by thread."""
        out = []
        with cutrace.load(self.folder / "run.bin") as trace:
            assert trace.quality.lossless
            path: list[str] = []
            order = trace.nvtx_ranges[["thread", "start"]].argsort(order=("thread", "start"))
            for row in trace.nvtx_ranges[order]:
                path = [*path[: int(row["depth"])], trace.strings[int(row["name"])]]
                out.append("/".join(path))
                assert row["domain"] == 0
        return out


@pytest.fixture
def program(fake_driver: FakeDriver, python: str, tmp_path: Path) -> Program:
    return Program(fake_driver, python, tmp_path)


def test_functions_of_all_kinds_end_their_ranges(program: Program) -> None:
    program.record(
        """
import asyncio, threading
def numbers():
    inner(); yield 1
    inner(); yield 2
def inner(): pass
def fails(): raise ValueError
def caught():
    try: fails()
    except ValueError: inner()
def fact(n): return n * fact(n - 1) if n else 1
async def wait():
    await asyncio.sleep(0)
    inner()
class Thing:
    def method(self): inner()
    @classmethod
    def of(cls): inner()
    @staticmethod
    def free(): inner()
    @property
    def value(self): return inner()
for n in numbers(): inner()
caught(); fact(2); asyncio.run(wait())
Thing().method(); Thing.of(); Thing.free(); Thing().value
closed = numbers(); next(closed); closed.close(); inner()
thread = threading.Thread(target=inner); thread.start(); thread.join()
""",
        "__main__:[!<]*",
    )
    # In Python 3.10, code objects do not know their class.
    free = "free" if program.version < (3, 11) else "Thing.free"
    methods = ("Thing.method", "Thing.of", free, "Thing.value")
    assert program.ranges() == [
        "numbers", "numbers/inner", "inner", "numbers", "numbers/inner", "inner", "numbers",
        "caught", "caught/fails", "caught/inner", "fact", "fact/fact", "fact/fact/fact", "wait", "wait", "wait/inner",
        *(path for name in methods for path in (name, f"{name}/inner")),
        "numbers", "numbers/inner", *(["numbers"] if program.version < (3, 13) else []), "inner", "inner",
    ]  # fmt: skip


def test_names_are_looked_up_as_python_does(program: Program) -> None:
    program.module(
        "work",
        """
import functools, types
def logged(function):
    @functools.wraps(function)
    def wrapper(*args): return function(*args)
    return wrapper
@logged
def step(): helper()
@logged
def other(): helper()
def helper(): pass
class Base:
    def run(self): helper()
class Trainer(Base):
    @classmethod
    def of(cls): return cls()
    @staticmethod
    def free(): pass
    @property
    def value(self): pass
    part = functools.partialmethod(Base.run)
compiled = types.FunctionType(helper.__code__.replace(co_stacksize=99), globals())  # as torch.compile runs
""",
    )
    program.record(
        "from lib import work\n"
        "work.step(); work.other(); work.Base().run(); work.compiled()\n"
        "trainer = work.Trainer.of(); trainer.run(); trainer.free(); trainer.value; trainer.part()",
        *(
            f"lib.work.{name}"
            for name in ("step", "Trainer.run", "Trainer.of", "Trainer.free", "Trainer.value", "helper")
        ),
    )
    assert program.ranges() == [
        "step", "step/helper", "helper", "helper", "helper", "Trainer.of", "Base.run", "Base.run/helper",
        "Trainer.free", "Trainer.value", "Base.run", "Base.run/helper",
    ], "of other classes and other decorated functions there is no range"  # fmt: skip


def test_patterns_match_modules_that_are_imported_later(program: Program) -> None:
    program.module("late", "def step(): part()\ndef part(): pass\nclass Body:\n  x = [part() for _ in '1']\n")
    program.record("from lib import late\nlate.step()", "li*:*", "unknown.module:*")
    assert program.ranges() == ["part", "step", "step/part"]


def test_functions_that_run_already_get_the_rest_of_their_time(program: Program) -> None:
    program.module(
        "train",
        "import fakegpu, threading\n"
        "def main():\n"
        "    outer = threading.Event()\n"
        "    fakegpu.launch('k'); step()\n"
        "def step(): pass\n",
    )
    (program.folder / "start.py").write_text("from lib.train import main\nmain()\n")
    env = program.driver.environment()
    command = ["record", "--annotate", "lib.train:*", "--", program.python, "start.py"]
    assert run_cutrace(*command, cwd=program.folder, env=env).returncode == 0
    assert program.ranges() == ["main", "main/step"]


def test_threads_that_run_already_have_ranges(program: Program) -> None:
    program.module(
        "train",
        "import fakegpu, threading\n"
        "go = threading.Event()\n"
        "def worker():\n"
        "    go.wait(); step()\n"
        "def step(): pass\n"
        "thread = threading.Thread(target=worker); thread.start()\n"
        "fakegpu.init(); go.set(); thread.join()\n",
    )
    env = program.driver.environment()
    command = ["record", "--annotate", "lib.train:*", "--", program.python, "-m", "lib.train"]
    assert run_cutrace(*command, cwd=program.folder, env=env).returncode == 0
    assert program.ranges() == ["worker", "worker/step"]


def test_ranges_of_torch_modules_have_the_names_of_the_modules(program: Program) -> None:
    program.record(
        """
import gc, weakref
from nn import *
model = Transformer(Block(), Block())
model(1)
shared = Linear()
both = Block(first=shared, again=shared)
both(1)
model.layers._modules["2"] = Block()  # a part that comes later
model(1)
ref = weakref.ref(model)
del model
gc.collect()
assert ref() is None
""",
        "nn.Module.__call__",
    )
    assert program.ranges() == [
        "Transformer", *(f"Transformer/layers.{i}{part}" for i in "01" for part in ("", "/attention", "/mlp")),
        "Transformer/head", "Block", "Block/attention", "Block/mlp", "Block/first", "Block/first",
        "Transformer", *(f"Transformer/layers.{i}{part}" for i in "012" for part in ("", "/attention", "/mlp")),
        "Transformer/head",
    ]  # fmt: skip


def test_wrappers_of_torch_modules_have_sensible_names(program: Program) -> None:
    program.record(
        """
from nn import *
block = Block()
block(1)  # called alone first, it is a part of the model all the same
model = DistributedDataParallel(module=Transformer(OptimizedModule(_orig_mod=block)))
model(1)
OptimizedModule(_orig_mod=Linear())(1)
""",
        "nn.Module.__call__",
    )
    model, block = "DistributedDataParallel/Transformer", "layers.0/Block"
    assert program.ranges() == [
        "Block", "Block/attention", "Block/mlp", "DistributedDataParallel", model, f"{model}/layers.0",
        *(f"{model}/{block}{part}" for part in ("", "/attention", "/mlp")), f"{model}/head", "Linear", "Linear/Linear",
    ]  # fmt: skip


def test_ranges_nest_with_those_of_the_program(fake_driver: FakeDriver, tmp_path: Path) -> None:
    pytest.importorskip("nvtx")
    program = Program(fake_driver, sys.executable, tmp_path)
    text = """
import nvtx
def begin(): nvtx.push_range("step")
def work(): pass
def end(): nvtx.pop_range()
begin(); work(); end()
"""
    program.record(text, "__main__:*")
    with cutrace.load(tmp_path / "run.bin") as trace:
        assert trace.quality.lossless
        times = {trace.strings[int(r["name"])]: (int(r["start"]), int(r["end"])) for r in trace.nvtx_ranges}
    assert times["step"][0] < times["begin"][1] < times["work"][0], "the range of begin ends when it returns"
    assert times["work"][1] < times["end"][0] < times["step"][1] < times["end"][1]


def test_a_program_without_cuda_needs_nvtx(fake_driver: FakeDriver, tmp_path: Path) -> None:
    pytest.importorskip("nvtx")
    (tmp_path / "program.py").write_text("import nvtx\nnvtx.mark('here')\ndef step(): pass\nstep()\n")
    done = run_cutrace("record", "--annotate", "__main__.step", "--", sys.executable, "program.py", cwd=tmp_path)
    assert "1 NVTX range, 1 NVTX mark" in done.stderr


def test_code_is_not_kept_alive(program: Program) -> None:
    # Code objects with many names get the addresses of freed objects. Only some of the names get ranges.
    program.record(
        "import gc, weakref\n"
        "kept = []\n"
        "for number in range(300):\n"
        "    names = {'__name__': '__main__'}\n"
        "    exec(f'def other{number}(): return eval(\"1\")\\ndef step{number}(): return other{number}()', names)\n"
        "    names[f'step{number}']()\n"
        "    codes = [compile('2', 'made', 'eval'), *(f.__code__ for f in names.values() if hasattr(f, '__code__'))]\n"
        "    eval(codes[0])\n"
        "    kept += map(weakref.ref, codes)\n"
        "    del names, codes\n"
        "gc.collect()\n"
        "assert len(kept) == 900 and not any(code() for code in kept), sum(code() is not None for code in kept)\n",
        "__main__:step*",
    )
    assert program.ranges() == [f"step{number}" for number in range(300)]


def test_forked_children_have_ranges_too(program: Program) -> None:
    program.record(
        """
import os
def step(): pass
def child(): step()
step()
pid = os.fork()
if pid == 0:
    child()
else:
    os.waitpid(pid, 0)
    step()
""",
        "__main__:*",
    )
    assert sorted(program.ranges()) == ["child", "child/step", "step", "step"]


def test_another_profiler_goes_on(program: Program) -> None:
    stderr = program.record(
        """
import cProfile, sys, threading
def step(): pass
profile = cProfile.Profile()
profile.enable(); step(); profile.disable()
assert any(entry.code is step.__code__ for entry in profile.getstats())
seen = []
sys.settrace(lambda frame, event, arg: seen.append(frame.f_code.co_name))
step()
sys.settrace(None)
assert "step" in seen
""",
        "__main__:step",
    )
    assert "Error" not in stderr


def test_the_program_does_not_see_the_ranges(program: Program) -> None:
    """Its variables and the lifetimes of its objects do not change."""
    stderr = program.record(
        """
import gc, sys, weakref
gc.disable()
class Thing: pass
class Owner:
    def forward(self, thing):
        ref = weakref.ref(thing)
        del thing
        return ref() is None
    def __call__(self, a):
        b = locals()
        yield b
        assert b == {"self": self, "a": 1}, b
assert Owner().forward(Thing()) or sys.version_info < (3, 11)  # where a call holds its arguments
assert len(list(Owner()(1))) == 1
def deep(n): return deep(n + 1)
try: deep(0)
except RecursionError: print("ends")
""",
        "__main__:Owner.*",
        "__main__:deep",
    )
    assert "Traceback" not in stderr


def test_names_without_a_range_are_noted(program: Program) -> None:
    program.module("work", "class Thing: pass\n")
    stderr = program.record(
        "import lib.work, math\nmath.sqrt(2); lib.work.Thing()", "lib.wrok.step", "math.sqrt", "lib.work.Thing"
    )
    assert "no call of lib.wrok.step was annotated: check the name" in stderr
    assert "math.sqrt is not written in Python" in stderr
    assert "lib.work.Thing is a class: name a function of it, such as lib.work.Thing.__init__" in stderr
    assert stderr.count("no call of") == 1
    shown = run_cutrace("info", "run.bin", cwd=program.folder).stdout
    assert "! no call of lib.wrok.step was annotated: check the name" in shown
    assert "Nothing is known to be missing" not in shown
    notes = json.loads(run_cutrace("info", "--format", "json", "run.bin", cwd=program.folder).stdout)["notes"]
    assert [note.partition(" was ")[0] for note in notes if "no call" in note] == ["no call of lib.wrok.step"]


def test_a_name_needs_a_range_in_one_process_only(program: Program) -> None:
    stderr = program.record(
        """
import os
def parent(): pass
def child(): pass
pid = os.fork()
child() if pid == 0 else (os.waitpid(pid, 0), parent())
""",
        "__main__.parent",
        "__main__.child",
        "__main__.neither",
    )
    assert "2 processes" in stderr
    assert stderr.count("no call of") == 1
    assert "no call of __main__.neither was annotated" in stderr


def test_no_place_for_the_hooks_is_noted(program: Program) -> None:
    stderr = program.record(
        """
def step(): pass
step()
""",
        "__main__.step",
    )
    assert "no function is annotated" not in stderr
    (program.folder / "program.py").write_text(
        "import sys\n"
        "if hasattr(sys, 'monitoring'):\n"
        "    for tool in range(6): sys.monitoring.use_tool_id(tool, 'other')\n"
        "else: sys.setprofile(lambda *event: None)\n"
        "import fakegpu; fakegpu.init()\n"
        "def step(): pass\n"
        "step()\n"
    )
    command = ["record", "--annotate", "__main__.step", "--", program.python, "program.py"]
    stderr = run_cutrace(*command, cwd=program.folder, env=program.driver.environment()).stderr
    assert "cutrace: no function is annotated: " in stderr
    assert "no call of" not in stderr


def test_a_program_that_is_not_python_is_noted(fake_driver: FakeDriver, tmp_path: Path) -> None:
    source = "int fake_gpu_init(void);\nint main(void) { return fake_gpu_init(); }\n"
    (tmp_path / "program.c").write_text(source)
    library = fake_driver.libraries / "libcuda.so.1"
    subprocess.run(["cc", "program.c", "-o", "program", library], cwd=tmp_path, check=True)
    done = run_cutrace("record", "--annotate", "a.b", "--", "./program", cwd=tmp_path, env=fake_driver.environment())
    assert "no function is annotated: the process is no Python program" in done.stderr


def test_an_old_python_is_noted(fake_driver: FakeDriver, tmp_path: Path) -> None:
    old = next(iter(Path("~/.pyenv/versions").expanduser().glob("3.9*/bin/python3.9")), None)
    if old is None:
        pytest.skip("there is no Python 3.9")
    command = [str(old), "-c", "import fakegpu; fakegpu.init(); fakegpu.launch()"]
    done = run_cutrace("record", "--annotate", "a.b", "--", *command, cwd=tmp_path, env=fake_driver.environment())
    assert "cutrace: no function is annotated: Python is older than 3.10\n" in done.stderr
    assert "the hooks could not be set, as the program's stderr says; they need Python 3.10 or newer" in done.stderr


def test_a_recording_in_the_process_takes_its_hooks_out(fake_driver: FakeDriver, tmp_path: Path) -> None:
    text = """
import sys, threading, warnings, cutrace, fakegpu
fakegpu.init()
def step(): inner()
def inner(): pass
go = threading.Semaphore(0)
left = []
def worker():
    for _ in range(2):
        go.acquire()
        left.append(sys.getprofile())  # after calls that have no range
thread = threading.Thread(target=worker)
thread.start()
for path, names in (("a.bin", "__main__.step"), ("b.bin", ["__main__:inner", "__main__:nothing"])):
    with warnings.catch_warnings(record=True) as caught, cutrace.record(path, annotate=names): step()
    print(*(warning.message for warning in caught))
    step()
    if hasattr(sys, "monitoring"): assert not any(map(sys.monitoring.get_tool, range(6)))
    else: assert sys.getprofile() is threading.getprofile() is None
    go.release()
thread.join()
assert left == [None, None]
"""
    done = subprocess.run(
        [sys.executable, "-c", text], cwd=tmp_path, env=fake_driver.environment(), capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (0, "")
    for name, ranges in (("a", ["step"]), ("b", ["inner"])):
        with cutrace.load(tmp_path / f"{name}.bin") as trace:
            assert trace.strings.take(trace.nvtx_ranges["name"]).tolist() == ranges
    first, second = done.stdout.splitlines()
    assert first == ""
    assert second.startswith("no call of __main__:nothing was annotated: check the name")


def test_arming_annotates_from_the_first_call_of_cuda_to_the_end(fake_driver: FakeDriver, tmp_path: Path) -> None:
    text = """
import sys, threading, cutrace, fakegpu
def step(): pass
def begin(): fakegpu.init()
with cutrace.arm("run.bin", annotate="__main__:*"):
    step(); begin(); step()
if hasattr(sys, "monitoring"): assert not any(map(sys.monitoring.get_tool, range(6)))
else: assert sys.getprofile() is threading.getprofile() is None
"""
    env = fake_driver.environment()
    done = subprocess.run([sys.executable, "-c", text], cwd=tmp_path, env=env, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    with cutrace.load(tmp_path / "run.bin") as trace:
        assert trace.quality.lossless
        assert sorted(trace.strings.take(trace.nvtx_ranges["name"]).tolist()) == ["begin", "step"]


@pytest.mark.parametrize("name", ["step", "", ":step", "a:", "a:b:c", "a b.c", "a.b;c=d", "mylib.*", "a.", "a,b:c"])
def test_a_name_that_is_none_is_refused_before_the_start(name: str, tmp_path: Path) -> None:
    with pytest.raises(CutraceError, match="names no function: write package"):
        Options.of(annotate=name)


def test_annotated_functions_need_nvtx_and_a_limit() -> None:
    for options in ({"nvtx": False}, {"kinds": "kernel"}):
        with pytest.raises(CutraceError, match="record NVTX too"):
            Options.of(annotate="a.b", **options)
    with pytest.raises(CutraceError, match="65 names to annotate are too many"):
        Options.of(annotate=[f"a.b{i}" for i in range(65)])
    for count, problem in ((64, "/no/such"), (65, "the option 'annotate=")):  # the collector has the same limit
        names = ",".join(["a.b"] * count)
        with pytest.raises(CutraceError, match=problem):
            collector().start(f"output=/no/such/run.bin;annotate={names}")
    done = run_cutrace("record", "--annotate", "step", "--", "true")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("cutrace: 'step' names no function")
