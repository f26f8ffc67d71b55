"""cutrace arm: the environment of its command. tests/faults/test_standby.py attaches to it."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from support import cutrace

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="standby is for Linux")


def armed(program: str, *options: str, **more):
    return cutrace("arm", *options, "--", sys.executable, "-c", f"import os\n{program}", **more)


def test_the_command_replaces_this_process():
    command = [sys.executable, "-m", "cutrace", "arm", "--", "sh", "-c", "echo $$; exit 5"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.communicate(timeout=60)[0] == f"{process.pid}\n"
    assert process.returncode == 5


def test_the_command_gets_the_options_and_no_ignored_signals():
    done = armed(
        "print(os.environ['CUTRACE_OPTIONS'].split('\\n'))\n"
        "print([os.environ[n].rpartition('/')[2] for n in "
        "('CUDA_INJECTION64_PATH', 'NVTX_INJECTION64_PATH')])",
        "--kinds", "kernel,nvtx", "--last", "5s", "--stacks", "launch:1/100,sync", "--stacks-min", "20us",
    )  # fmt: skip
    assert done.stderr == ""
    options, libraries = done.stdout.splitlines()
    assert {"standby=1", "kinds=kernel,nvtx", "last_ms=5000"} <= set(eval(options))
    assert {"stacks=sync,launch:100", "stacks_min_ns=20000"} <= set(eval(options))
    assert eval(libraries) == ["libcutrace_collector.so"] * 2
    grep = ("grep", "SigIgn", "/proc/self/status")
    alone = subprocess.run(grep, capture_output=True, text=True, check=True)  # nohup makes it ignore some signals
    assert cutrace("arm", "--", *grep).stdout == alone.stdout


def test_another_tool_in_the_environment_is_named():
    done = armed("pass", env={"NVTX_INJECTION64_PATH": "/opt/tool/libother.so"})
    assert "NVTX_INJECTION64_PATH was set to /opt/tool/libother.so by another tool" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("no-such-command",), "command not found: no-such-command"),
        ((), "Missing argument 'COMMAND...'"),
        (("--kinds", "kernels", "true"), "unknown kind of activity: 'kernels'"),
        (("-o", "run.bin", "true"), "No such option"),
    ],
)
def test_mistakes_are_said_before_the_command_runs(arguments, sentence):
    done = cutrace("arm", *arguments, env={**os.environ})
    assert done.returncode == 2
    assert sentence in done.stderr


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("0",), "Invalid value for 'PID'"),
        (("1", "--for", "soon"), "'soon' is not a time"),
        (("1", "--rotate"), "rotate needs a maximum size"),
        (("1", "-o", "no/run.bin"), "process 1"),
    ],
)
def test_mistakes_of_attach(arguments, sentence):
    done = cutrace("attach", *arguments, env={**os.environ})
    assert done.returncode == 2
    assert sentence in done.stderr
    assert "Traceback" not in done.stderr
