"""Recording from inside a program. Each program runs in a separate process, because a process has one collector."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import cutrace

NVTX = "import nvtx, os, sys, json, cutrace\n"


def run(folder: Path, program: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", NVTX + program], cwd=folder, capture_output=True, text=True, timeout=60
    )


def succeed(folder: Path, program: str) -> str:
    done = run(folder, program)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def names(path: Path) -> list[str]:
    with cutrace.load(path) as trace:
        return trace.strings.take(trace.nvtx_ranges["name"]).tolist()


def marks(path: Path) -> list[str]:
    with cutrace.load(path) as trace:
        rows = trace.nvtx_marks[trace.nvtx_marks["time"].argsort(kind="stable")]
        return trace.strings.take(rows["name"]).tolist()


def test_record_holds_what_happens_inside_and_nothing_else(tmp_path):
    succeed(
        tmp_path,
        "with cutrace.record('run.bin'):\n"
        "    with nvtx.annotate('inside'): assert not os.path.exists('run.bin')\n"
        "with nvtx.annotate('after'): pass\n",
    )
    assert names(tmp_path / "run.bin") == ["inside"]
    assert [p.name for p in tmp_path.iterdir()] == ["run.bin"]


def test_a_decorated_function_is_recorded_anew_each_time(tmp_path):
    succeed(
        tmp_path,
        "@cutrace.record('run.bin')\n"
        "def step(n):\n"
        "    'Doc.'\n"
        "    with nvtx.annotate(f'step {n}'): return n\n"
        "assert [step(1), step(2), step(3)] == [1, 2, 3] and step.__doc__ == 'Doc.'\n",
    )
    assert [names(tmp_path / f"{name}.bin") for name in ("run", "run-1", "run-2")] == [
        ["step 1"],
        ["step 2"],
        ["step 3"],
    ]


def test_the_first_call_replaces_the_capture_of_an_earlier_run_and_no_other_file(tmp_path):
    for name in ("run.bin", "run-1.bin"):
        (tmp_path / name).write_bytes(b"earlier")
    program = "@cutrace.record('run.bin')\ndef step(n): nvtx.mark(str(n))\nstep(1); step(2)"
    succeed(tmp_path, program)
    assert (tmp_path / "run-1.bin").read_bytes() == b"earlier"
    assert [marks(tmp_path / f"{name}.bin") for name in ("run", "run-2")] == [["1"], ["2"]]


KINDS = {
    "a coroutine": (
        "import asyncio\n@cutrace.record('run.bin')\nasync def step():\n"
        "    nvtx.mark('first')\n    await asyncio.sleep(0)\n    nvtx.mark('second')\n    return 5\n"
        "assert asyncio.run(step()) == 5\n"
    ),
    "a generator": (
        "@cutrace.record('run.bin')\ndef step():\n    nvtx.mark('first')\n    got = yield 1\n    nvtx.mark(got)\n"
        "    return 5\nit = step()\nassert next(it) == 1\ntry: it.send('second')\n"
        "except StopIteration as end: assert end.value == 5\n"
    ),
    "an asynchronous generator": (
        "import asyncio\n@cutrace.record('run.bin')\nasync def step():\n"
        "    nvtx.mark('first')\n    yield 1\n    nvtx.mark('second')\n"
        "async def main(): assert [i async for i in step()] == [1]\nasyncio.run(main())\n"
    ),
}


@pytest.mark.parametrize("kind", KINDS)
def test_what_runs_when_it_is_waited_for_is_recorded_as_it_runs(tmp_path, kind):
    succeed(tmp_path, KINDS[kind])
    assert marks(tmp_path / "run.bin") == ["first", "second"]


# Prints what the generator gets. `plain` is the generator without a decorator.
ASYNCHRONOUS = """
import asyncio, contextlib
async def plain(*first):
    print('first', first)
    try:
        while True:
            try: print('sent', (yield 'item'))
            except KeyError as error: print('thrown', repr(error))
            except ValueError: return
            except BaseException as error:
                print('ends with', repr(error))
                raise
    finally:
        print('closed')
        nvtx.mark('closed')
decorated = cutrace.record('run.bin')(plain)
async def main(make):
    items = make(1)
    print(await items.asend(None), await items.asend('a'), await items.athrow(KeyError('b')))
    {end}
for make in decorated, plain: asyncio.run(main(make))
"""


@pytest.mark.parametrize(
    ("end", "last"),
    [
        ("await items.aclose()", "ends with GeneratorExit()\nclosed\n"),
        ("with contextlib.suppress(StopAsyncIteration): await items.athrow(ValueError())", "closed\n"),
        ("with contextlib.suppress(OSError): await items.athrow(OSError(1))", "ends with OSError(1)\nclosed\n"),
    ],
)
def test_a_recorded_asynchronous_generator_gets_what_is_sent_and_thrown(tmp_path, end, last):
    said = succeed(tmp_path, ASYNCHRONOUS.replace("{end}", end))
    whole = f"first (1,)\nsent a\nthrown KeyError('b')\nitem item item\n{last}"
    assert said == 2 * whole
    assert marks(tmp_path / "run.bin") == ["closed"]


def test_a_call_during_another_one_is_in_its_recording(tmp_path):
    program = "@cutrace.record('run.bin')\ndef step(n):\n    nvtx.mark(str(n))\n    if n: step(n - 1)\nstep(2)"
    succeed(tmp_path, program)
    assert marks(tmp_path / "run.bin") == ["2", "1", "0"]
    assert [p.name for p in tmp_path.iterdir()] == ["run.bin"]


def test_calls_in_several_threads_all_run(tmp_path):
    # Recordings start and end while other threads make calls.
    program = (
        "import threading, warnings\nwarnings.simplefilter('ignore')\nran = []\n"
        "@cutrace.record('run.bin')\ndef step(n):\n    nvtx.mark(str(n))\n    ran.append(n)\n    return n\n"
        "@cutrace.record('other.bin')\ndef other(n): return step(n)\n"
        "def work(call):\n    for n in range(20): assert call(n) == n\n"
        "threads = [threading.Thread(target=work, args=(call,)) for call in (step, step, other)]\n"
        "for thread in threads: thread.start()\n"
        "for thread in threads: thread.join()\n"
        "print(len(ran))\n"
    )
    assert succeed(tmp_path, program) == "60\n"
    assert {path.suffix for path in tmp_path.iterdir()} == {".bin"}


def test_a_call_of_another_thread_is_in_the_recording_of_the_first(tmp_path):
    program = (
        "import threading\n"
        "@cutrace.record('run.bin')\ndef outer():\n"
        "    thread = threading.Thread(target=inner)\n    thread.start()\n    thread.join()\n    nvtx.mark('outer')\n"
        "@cutrace.record('inner.bin')\ndef inner(): nvtx.mark('inner')\n"
        "outer()\n"
    )
    succeed(tmp_path, program)
    assert marks(tmp_path / "run.bin") == ["inner", "outer"]
    assert [p.name for p in tmp_path.iterdir()] == ["run.bin"]


UNRECORDED = {
    "no folder": ("@cutrace.record('absent/run.bin')\n", "absent does not exist"),
    "another recording": ("cutrace.record('a.bin').start()\n@cutrace.record('run.bin')\n", "is recorded already"),
    "an armed program": ("cutrace.arm('a.bin')\n@cutrace.record('run.bin')\n", "is recorded already"),
}


@pytest.mark.parametrize("case", UNRECORDED)
def test_a_call_that_cannot_be_recorded_runs_with_a_warning(tmp_path, case):
    begin, reason = UNRECORDED[case]
    done = run(tmp_path, f"{begin}def step(n): return n\nassert [step(1), step(2)] == [1, 2]")
    assert done.returncode == 0
    assert "<string>:" in done.stderr
    assert "RuntimeWarning: step() runs without a recording: " in done.stderr
    assert reason in done.stderr
    assert not (tmp_path / "run.bin").exists()


def test_a_recording_that_fails_leaves_the_result_of_the_call(tmp_path):
    program = (
        "@cutrace.record('run.json')\ndef step():\n"
        "    nvtx.mark('here')\n    os.mkdir('run.json')\n    return 5\n"
        "assert step() == 5\n"
    )
    done = run(tmp_path, program)
    assert done.returncode == 0
    assert "RuntimeWarning: step() ran, but its recording failed: " in done.stderr
    assert marks(tmp_path / "run.bin") == ["here"]


def test_a_child_that_is_forked_inside_a_call_records_calls_of_its_own(tmp_path):
    program = (
        "import warnings; warnings.simplefilter('ignore')  # newer Pythons warn of any fork beside threads\n"
        "@cutrace.record('run.bin')\ndef parent():\n"
        "    nvtx.mark('parent')\n"
        "    child = os.fork()\n"
        "    if not child:\n        step()\n        os._exit(0)\n"
        "    assert os.waitpid(child, 0)[1] == 0\n"
        "@cutrace.record('child.bin')\ndef step(): nvtx.mark('child')\n"
        "parent()\n"
    )
    succeed(tmp_path, program)
    assert marks(tmp_path / "run.bin") == ["parent"]
    assert marks(tmp_path / "child.bin") == ["child"]


def test_what_is_not_stopped_ends_with_the_program(tmp_path):
    succeed(tmp_path, "cutrace.record('run.bin').start()\nnvtx.mark('here')")
    assert marks(tmp_path / "run.bin") == ["here"]
    assert [p.name for p in tmp_path.iterdir()] == ["run.bin"]


def test_a_refused_second_recording_leaves_the_first_alone(tmp_path):
    succeed(
        tmp_path,
        "with cutrace.record('run.bin'):\n"
        "    nvtx.mark('before')\n"
        "    try: cutrace.arm('other.bin')\n"
        "    except cutrace.CutraceError as error: assert 'recorded already' in str(error)\n"
        "    nvtx.mark('after')\n",
    )
    assert marks(tmp_path / "run.bin") == ["before", "after"]
    assert [p.name for p in tmp_path.iterdir()] == ["run.bin"]


def test_an_empty_recording_says_why_nothing_may_have_been_seen(tmp_path):
    done = run(tmp_path, "nvtx.mark('early')\nwith cutrace.record('run.bin'): nvtx.mark('late')")
    assert done.returncode == 0
    assert f"RuntimeWarning: {tmp_path}/run.bin is empty" in done.stderr
    assert "called NVTX before" in done.stderr
    assert (tmp_path / "run.bin").exists()


@pytest.mark.parametrize("output", ["run.json", "run.parquet"])
def test_a_recording_is_converted_where_the_name_asks_for_it(tmp_path, output):
    succeed(tmp_path, f"with cutrace.record('{output}'): nvtx.mark('here')")
    assert marks(tmp_path / "run.bin") == ["here"]
    if output != "run.parquet":  # a file that cutrace does not read
        with cutrace.load(tmp_path / output) as trace:
            assert trace.strings.find("here")
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted(["run.bin", output])


@pytest.mark.parametrize("output", ["run.pftrace", "run.pftrace.gz"])
def test_a_perfetto_trace_carries_the_capture(tmp_path, output):
    (tmp_path / "run.bin").write_bytes(b"earlier")
    succeed(tmp_path, f"with cutrace.record('{output}'): nvtx.mark('here')")
    assert marks(tmp_path / output) == ["here"]
    assert (tmp_path / "run.bin").read_bytes() == b"earlier"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["run.bin", output]


@pytest.mark.parametrize("output", ["run.json", "run.pftrace", "run.pftrace.gz"])
def test_a_conversion_that_fails_leaves_the_capture(tmp_path, output):
    done = run(tmp_path, f"with cutrace.record('{output}'):\n    nvtx.mark('here')\n    os.mkdir('{output}')")
    assert done.returncode == 1
    place = done.stderr.rstrip(".\n").rpartition("The recording is in ")[2]
    assert marks(tmp_path / place) == ["here"]


@pytest.mark.parametrize("output", ["run.bin", "run.pftrace", "run.pftrace.gz", "run.sqlite", "run.parquet"])
@pytest.mark.parametrize("start", ["record({!r}).start()", "arm({!r})"])
def test_what_ends_with_the_program_is_converted_too(tmp_path, output, start):
    succeed(tmp_path, f"cutrace.{start.format(output)}\nnvtx.mark('here')")
    carrier = output if output.startswith("run.pftrace") else "run.bin"
    assert marks(tmp_path / carrier) == ["here"]
    assert {path.name for path in tmp_path.iterdir()} == {carrier, output}


def test_armed_programs_are_converted_too(tmp_path):
    succeed(tmp_path, "cutrace.arm('run.json')\nnvtx.mark('here')")
    assert "here" in (tmp_path / "run.json").read_text()
    assert marks(tmp_path / "run.bin") == ["here"]


def test_an_error_inside_passes_through_and_the_capture_is_kept(tmp_path):
    done = run(tmp_path, "with cutrace.record('run.bin'), nvtx.annotate('work'): raise KeyError('mine')")
    assert done.stderr.splitlines()[-1] == "KeyError: 'mine'"
    assert names(tmp_path / "run.bin") == ["work"]


@pytest.mark.parametrize("how", ["record", "arm"])
def test_a_recording_that_cannot_be_written_warns_of_an_error_inside(tmp_path, how):
    program = (
        f"with cutrace.{how}('run.json'):\n    nvtx.mark('here')\n    os.mkdir('run.json')\n    raise KeyError('mine')"
    )
    done = run(tmp_path, program)
    assert done.returncode == 1
    (warning,) = (line for line in done.stderr.splitlines() if line.startswith("<string>:"))
    assert "RuntimeWarning: cannot write " in warning
    place = warning.rstrip(".").rpartition("The recording is in ")[2]
    assert marks(tmp_path / place) == ["here"]
    assert done.stderr.splitlines()[-1] == "KeyError: 'mine'"


# The recording gets a signal when its files are joined.
LATE = """
import signal
from cutrace.collect.join import Destination
finish = Destination.finish
def late(to):
    os.kill(os.getpid(), signal.{signal})
    return finish(to)
Destination.finish = late
"""


@pytest.mark.parametrize("how", ["record", "arm"])
@pytest.mark.parametrize("inside", ["pass", "raise KeyboardInterrupt"])
def test_ctrl_c_during_the_write_is_delivered_after_it(tmp_path, how, inside):
    program = (
        LATE.format(signal="SIGINT")
        + f"with cutrace.{how}('run.pftrace'):\n    nvtx.mark('here')\n    {inside}\nprint('goes on')"
    )
    done = run(tmp_path, program)
    assert done.stderr.splitlines()[-1] == "KeyboardInterrupt"
    assert done.stdout == ""
    assert marks(tmp_path / "run.pftrace") == ["here"]
    assert [path.name for path in tmp_path.iterdir()] == ["run.pftrace"]


def test_a_request_to_end_during_the_write_is_delivered_after_it(tmp_path):
    program = LATE.format(signal="SIGTERM") + "cutrace.record('run.bin').start()\nnvtx.mark('here')"
    assert run(tmp_path, program).returncode == -15
    assert marks(tmp_path / "run.bin") == ["here"]
    assert [path.name for path in tmp_path.iterdir()] == ["run.bin"]


def test_a_handler_of_the_program_gets_a_signal_once_and_stays(tmp_path):
    program = (
        LATE.format(signal="SIGTERM")
        + "got = []\ndef handler(number, _): got.append((number, os.path.exists('run.bin')))\n"
        "signal.signal(signal.SIGTERM, handler)\n"
        "with cutrace.record('run.bin'): nvtx.mark('here')\n"
        "assert got == [(15, True)], got\n"
        "assert signal.getsignal(signal.SIGTERM) is handler\n"
    )
    succeed(tmp_path, program)


def test_a_recording_ends_in_a_sub_interpreter(tmp_path):
    program = """
try: import _interpreters as interpreters
except ImportError: import _xxsubinterpreters as interpreters
inner = "import cutrace\\nwith cutrace.record('run.bin'): cutrace.mark('here')"
failure = interpreters.run_string(interpreters.create(), inner)
assert failure is None, failure
"""
    done = run(tmp_path, program)
    assert done.returncode == 0, done.stderr
    assert marks(tmp_path / "run.bin") == ["here"]
    assert [path.name for path in tmp_path.iterdir()] == ["run.bin"]


def test_a_second_recording_at_the_same_time_is_refused(tmp_path):
    program = (
        "with cutrace.record('a.bin'):\n"
        "    nvtx.mark('here')\n"
        "    try: cutrace.record('b.bin').start()\n"
        "    except cutrace.CutraceError as error: print(error)\n"
    )
    assert "recorded already" in succeed(tmp_path, program)
    assert [p.name for p in tmp_path.iterdir()] == ["a.bin"]


@pytest.mark.parametrize("before", ["", "nvtx.mark('first')"])
def test_under_cutrace_record_a_recording_of_ones_own_is_refused(tmp_path, before):
    program = NVTX + f"{before}\nwith cutrace.record('b.bin'): nvtx.mark('inside')"
    command = [sys.executable, "-m", "cutrace", "record", "-o", "a.bin", "--", sys.executable, "-c", program]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert "recorded already" in done.stderr


@pytest.mark.parametrize(
    ("call", "hint"),
    [
        ("cutrace.record('absent/run.bin').start()", "does not exist"),
        ("cutrace.record('run.bin', kinds='warp')", "unknown kind of activity"),
        ("cutrace.arm('absent/run.bin')", "does not exist"),
        ("cutrace.arm('run.bin', api='some')", "launch, all, none"),
        ("os.environ['CUDA_INJECTION64_PATH'] = '/x.so'; cutrace.arm('run.bin')", "another tool"),
        ("cutrace.arm('run.bin'); cutrace.arm('run.bin')", "already"),
        ("os.mkdir('a;b'); os.chdir('a;b'); cutrace.record('run.bin').start()", "contains a semicolon"),
        ("os.mkdir('a;b'); os.chdir('a;b'); cutrace.arm('run.bin')", "contains a semicolon"),
    ],
)
def test_what_cannot_be_recorded_is_one_clear_error(tmp_path, call, hint):
    done = run(tmp_path, call)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith("cutrace.errors.CutraceError: ")
    assert hint in done.stderr.splitlines()[-1]
    assert [path.name for path in tmp_path.rglob("*") if path.name != "a;b"] == []


def test_a_forked_child_leaves_the_recording_to_its_parent(tmp_path):
    succeed(
        tmp_path,
        "import warnings; warnings.simplefilter('ignore')  # newer Pythons warn of any fork beside threads\n"
        "with cutrace.record('run.bin'):\n"
        "    with nvtx.annotate('parent'): pass\n"
        "    child = os.fork()\n"
        "    if child: os.waitpid(child, 0)\n"
        "if not child: sys.exit()\n",
    )
    assert names(tmp_path / "run.bin") == ["parent"]


def test_arm_records_to_the_end_of_the_program_children_included(tmp_path):
    succeed(
        tmp_path,
        "import subprocess\n"
        "cutrace.arm('run.bin')\n"
        "with nvtx.annotate('parent'): pass\n"
        "child = 'import nvtx\\nwith nvtx.annotate(\"child\"): pass'\n"
        "subprocess.run([sys.executable, '-c', child], check=True)\n",
    )
    assert sorted(names(tmp_path / "run.bin")) == ["child", "parent"]
    with cutrace.load(tmp_path / "run.bin") as trace:
        assert len(trace.processes) == 2


@pytest.mark.parametrize("how", ["record", "arm"])
@pytest.mark.parametrize("name", ["x100%quick", "100%host"])
def test_the_name_of_the_current_folder_has_no_placeholders(tmp_path, how, name):
    folder = tmp_path / name
    folder.mkdir()
    succeed(folder, f"with cutrace.{how}('run-%p.bin'): nvtx.mark('here')")
    (path,) = folder.iterdir()
    assert marks(path) == ["here"]


@pytest.mark.parametrize("how", ["record", "arm"])
@pytest.mark.parametrize("output", ["run.bin", "run.pftrace", "run.json"])
def test_a_folder_may_have_any_name(tmp_path, how, output):
    folder = tmp_path / os.fsdecode(b"caf\xe9")
    folder.mkdir()
    succeed(folder, f"with cutrace.{how}({output!r}): nvtx.mark('here')")
    if output == "run.json":
        assert (folder / output).exists()
        output = "run.bin"
    assert marks(folder / output) == ["here"]


@pytest.mark.parametrize("how", ["record", "arm"])
def test_a_program_may_change_the_folder(tmp_path, how):
    succeed(
        tmp_path,
        "os.mkdir('other')\n"
        f"with cutrace.{how}('run.bin') as recording:\n"
        "    os.chdir('other')\n"
        "    with nvtx.annotate('inside'): pass\n"
        "assert os.path.isfile(recording.path)\n",
    )
    assert names(tmp_path / "run.bin") == ["inside"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["other", "run.bin"]


def test_arm_without_a_call_to_record_leaves_nothing(tmp_path):
    program = (
        "before = dict(os.environ)\n"
        "armed = cutrace.arm('run.bin')\n"
        "assert 'CUTRACE_OPTIONS' in os.environ\n"
        "assert armed.stop() is None and armed.stop() is None\n"
        "assert dict(os.environ) == before\n"
    )
    succeed(tmp_path, program)
    assert list(tmp_path.iterdir()) == []


def test_arm_can_be_a_context_and_be_used_again(tmp_path):
    program = (
        "for name in ('a', 'b'):\n"
        "    with cutrace.arm(f'{name}.bin') as armed, nvtx.annotate(name): pass\n"
        "    print(armed.path)\n"
    )
    assert succeed(tmp_path, program) == f"{tmp_path}/a.bin\n{tmp_path}/b.bin\n"
    assert names(tmp_path / "a.bin") == ["a"]
    assert names(tmp_path / "b.bin") == ["b"]


def test_the_number_of_an_output_is_in_the_path_of_its_recording(tmp_path):
    program = (
        "recording = cutrace.record('run-%i.bin')\n"
        "for n in range(2):\n"
        "    with recording: nvtx.mark(str(n))\n"
        "    print(recording.path.name)\n"
        "armed = cutrace.arm('run-%i.bin')\n"
        "nvtx.mark('2')\n"
        "print(armed.stop().name, armed.path.name)\n"
    )
    assert succeed(tmp_path, program) == "run-1.bin\nrun-2.bin\nrun-3.bin run-3.bin\n"
    assert [marks(tmp_path / f"run-{n}.bin") for n in (1, 2, 3)] == [["0"], ["1"], ["2"]]


def test_a_call_leaves_a_file_alone_that_took_its_number_meanwhile(tmp_path):
    program = (
        "@cutrace.record('run-%i.bin')\ndef step(n):\n"
        "    nvtx.mark(str(n))\n    if n == 2: open('run-2.bin', 'x').close()\n"
        "step(1); step(2)\n"
    )
    succeed(tmp_path, program)
    assert (tmp_path / "run-2.bin").read_bytes() == b""
    assert [marks(tmp_path / f"run-{n}.bin") for n in (1, 3)] == [["1"], ["2"]]


def test_a_mark_is_in_the_recording_and_harmless_without_one(tmp_path):
    succeed(
        tmp_path, "cutrace.mark('lost')\nwith cutrace.record('run.bin'): cutrace.mark('here')\ncutrace.mark('lost')"
    )
    with cutrace.load(tmp_path / "run.bin") as trace:
        assert trace.strings.take(trace.nvtx_marks["name"]).tolist() == ["here"]


def test_the_options_are_in_the_capture(tmp_path):
    program = "with cutrace.record('run.bin', api='all', max_size='1GiB'): nvtx.mark('x')"
    succeed(tmp_path, program)
    with cutrace.load(tmp_path / "run.bin") as trace:
        options = trace.processes[0].info["options"]
    assert json.loads(json.dumps(options))["max_size"] == str(1 << 30)
    assert options["api"] == "all"
