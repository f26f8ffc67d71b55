"""`cutrace record --sample` on the fake GPU, while a command is recorded."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from cutrace.collect.options import Options
from cutrace.errors import CutraceError
from cutrace.trace import load
from support import cutrace
from support.fakedriver import FakeDriver

PROGRAM = """
import sys, time, fakegpu
for _ in range(5):
    fakegpu.launch("_Z4axpyPfi", grid=8, duration_ns=5000); time.sleep(0.05)
fakegpu.synchronize()
"""
RUN = PROGRAM + "sys.exit(7)"


def record(
    driver: FakeDriver, folder: Path, *options: str, program: str = RUN, failures: str = "", output: str = "run.bin"
) -> subprocess.CompletedProcess[str]:
    words = [sys.executable, "-m", "cutrace", "record", "-o", output, *options, "--", sys.executable, "-c", program]
    env = driver.environment() | {"FAKE_CUPTI_FAILURES": failures}
    return subprocess.run(words, cwd=folder, env=env, capture_output=True, text=True, timeout=60)


def test_samples_lie_beside_the_records_of_the_command(fake_driver, tmp_path):
    done = record(fake_driver, tmp_path, "--sample", "metrics")
    assert done.returncode == 7
    assert "1 process, 5 kernels" in done.stderr
    assert "sampled values" in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["run.bin"]
    with load(tmp_path / "run.bin") as trace:
        command, sampler = trace.processes
        assert not {"sampled", "sample_interval"} & command.info.keys()
        assert sampler.info["sample_interval"] == 1_000_000
        rows = np.concatenate(list(trace.blocks("counters")))
        assert set(rows["process"].tolist()) == {1}
        # Samples have the same clock as kernels, and were taken while these ran.
        assert rows["time"].min() < trace.kernels["start"].min()
        assert rows["time"].max() > trace.kernels["end"].max()
        assert rows["time"].max() - rows["time"].min() < 30 * 10**9
        # The sampled GPU is the GPU of the command.
        assert len({bytes(row["uuid"]) for row in trace.devices}) == 1
        assert not trace.named_losses


def test_metrics_and_interval_are_chosen(fake_driver, tmp_path):
    name = "dram__bytes_read.sum.per_second"
    assert record(fake_driver, tmp_path, "--sample", f"metrics={name}", "--interval", "1ms").returncode == 7
    with load(tmp_path / "run.bin") as trace:
        rows = np.concatenate(list(trace.blocks("counters")))
        assert {trace.strings[number] for number in set(rows["name"].tolist())} == {name}
        assert set(np.diff(rows["time"]).tolist()) == {1_000_000}
        # The fake GPU reads 4096 bytes in each sample.
        assert rows["value"][:-1].tolist() == [4096e3] * (len(rows) - 1)
    stats = json.loads(cutrace("stats", tmp_path / "run.bin", "--report", "counter_sum", "--format", "json").stdout)
    (counter,) = stats["reports"][0]["rows"]
    assert counter["total"] == 4096 * counter["samples"]


@pytest.mark.parametrize(
    ("sample", "failures", "message"),
    [
        ("metrics", "PmSamplingGetCounterAvailability:35", "NVreg_RestrictProfilingToAdminUsers=0"),
        ("metrics", "PmSamplingStart:26", "another tool holds the counters"),
        ("metrics=speed-of-light", "", "need 6 passes, but a sample is taken in one"),
        ("metrics=sm__nothing.sum", "", "GH100 has no metric"),
        ("metrics=nothing", "", "neither a set"),
        ("power", "", "write metrics"),
        ("metrics=", "", "write metrics"),
    ],
)
def test_what_cannot_be_sampled_is_an_error_before_the_command_runs(fake_driver, tmp_path, sample, failures, message):
    done = record(fake_driver, tmp_path, "--sample", sample, program="open('ran', 'w')", failures=failures)
    assert done.returncode == 2
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_without_a_gpu_sampling_is_an_error(tmp_path, fake_driver):
    env = {**os.environ, "PYTHONPATH": fake_driver.environment()["PYTHONPATH"]}
    words = [sys.executable, "-m", "cutrace", "record", "--sample", "metrics", "--", "touch", "ran"]
    done = subprocess.run(words, cwd=tmp_path, env=env, capture_output=True, text=True)
    assert done.returncode == 2
    assert "no GPU" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_command_that_uses_no_gpu_leaves_the_samples(fake_driver, tmp_path):
    done = record(fake_driver, tmp_path, "--sample", "metrics", program="import time; time.sleep(0.3)")
    assert done.returncode == 0
    assert "only samples" in done.stderr
    with load(tmp_path / "run.bin") as trace:
        assert trace.count("counters")


def test_the_samples_are_redacted_with_the_rest(fake_driver, tmp_path):
    assert record(fake_driver, tmp_path, "--sample", "metrics", "--redact").returncode == 7
    with load(tmp_path / "run.bin") as trace:
        assert trace.count("counters")
        assert not trace.processes[1].host
        assert not trace.processes[1].command


def test_an_interruption_ends_the_command_and_keeps_the_samples(fake_driver, tmp_path):
    program = PROGRAM + "open('ready', 'w').close(); time.sleep(60)"
    words = [sys.executable, "-m", "cutrace", "record", "--sample", "metrics", "--", sys.executable, "-c", program]
    # A terminal sends Ctrl-C to all processes of its group.
    running = subprocess.Popen(
        words, cwd=tmp_path, env=fake_driver.environment(), stderr=subprocess.PIPE, start_new_session=True
    )
    deadline = time.monotonic() + 30
    while not (tmp_path / "ready").exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    os.killpg(running.pid, signal.SIGINT)
    running.communicate(timeout=30)
    assert running.returncode == 128 + signal.SIGINT
    with load(tmp_path / "run.bin") as trace:
        assert trace.count("kernels")
        assert trace.count("counters") > 1000
        assert trace.processes[1].complete


KILL_SAMPLER = PROGRAM + (
    "import os, pathlib, signal\n"
    "for each in pathlib.Path('/proc').glob('[0-9]*/cmdline'):\n"
    "    try: words = each.read_bytes().split(b'\\0')\n"
    "    except OSError: continue\n"
    "    if b'cutrace.extras.hardware.sampling' in words and any(os.getcwd().encode() in word for word in words):\n"
    "        os.kill(int(each.parts[2]), signal.SIGKILL)\n"
    "sys.exit(7)"
)


def test_samples_of_a_killed_sampler_are_kept_and_the_status_is_that_of_the_command(fake_driver, tmp_path):
    done = record(fake_driver, tmp_path, "--sample", "metrics", program=KILL_SAMPLER)
    assert done.returncode == 7
    assert "sampling ended early, with status -9" in done.stderr
    with load(tmp_path / "run.bin") as trace:
        assert trace.count("counters")
        assert not trace.processes[1].complete


def test_lost_samples_are_said(fake_driver, tmp_path):
    done = record(fake_driver, tmp_path, "--sample", "metrics", failures="overflow:1")
    assert done.returncode == 7
    assert "of hardware counters dropped because the GPU's buffer was full (GPU 0)" in done.stderr
    assert "use a longer --interval" in done.stderr


@pytest.mark.parametrize("begin", ["with cutrace.record('run.bin', {0}):", "with cutrace.arm('run.bin', {0}):"])
def test_from_inside_a_program(fake_driver, tmp_path, begin):
    inside = "import cutrace\n" + begin.format("sample='metrics', interval='1ms'")
    lines = "\n    ".join(PROGRAM.strip().splitlines()[1:])
    program = f"import sys, time, fakegpu\n{inside}\n    {lines}\n"
    env = fake_driver.environment()
    subprocess.run([sys.executable, "-c", program], cwd=tmp_path, env=env, check=True, timeout=60)
    with load(tmp_path / "run.bin") as trace:
        assert trace.count("kernels") == 5
        assert trace.processes[1].info["sample_interval"] == 1_000_000
        assert trace.count("counters") > 100


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"interval": "1ms"}, "say what to sample"),
        ({"sample": "metrics", "interval": "10ns"}, "give 1us or more"),
        ({"sample": "metrics", "interval": "2s"}, "up to 1s"),
        ({"sample": "metrics", "last": "30s"}, "newest rows"),
        ({"sample": "power"}, "write metrics"),
        ({"sample": "pc=1000"}, "give 32, 64, 128"),
        ({"sample": "pc="}, "write metrics"),
        ({"sample": "pc", "interval": "1ms"}, "needs samples of metrics"),
    ],
)
def test_options_that_make_no_sense_are_refused(options, message):
    with pytest.raises(CutraceError, match=message):
        Options.of(**options)


def test_options_as_people_write_them():
    assert (Options.of(sample="metrics").sampled_metrics, Options.of(sample="metrics").interval_ns) == ("", 1_000_000)
    chosen = Options.of(sample="metrics=occupancy", interval="50us")
    assert (chosen.sampled_metrics, chosen.interval_ns) == ("occupancy", 50_000)
    assert Options.of().sampled_metrics is None


@pytest.mark.parametrize(("given", "line"), [("pc", "sample=pc=32768"), ("pc=4096", "sample=pc=4096")])
def test_the_collector_is_told_to_sample_program_counters(given, line):
    options = Options.of(sample=given, last="30s")
    assert options.sampled_metrics is None
    assert line in options.text(output="run.bin").splitlines()
