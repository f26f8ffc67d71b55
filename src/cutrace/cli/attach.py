"""cutrace attach: record a process that runs already."""

from __future__ import annotations

import signal
import time
from pathlib import Path
from typing import Any

import click

from ..collect import Attachment, Options
from ..collect.command import HELD, collected, signals_blocked
from ..collect.join import free_output, output_name, reserved_output
from ..collect.standby import length_of, wait_for_end
from ..errors import CutraceError
from ..units import parse_duration
from . import options
from .output import end_line, say
from .record import KINDS_OF_ACTIVITY, check_name, summarize


class _Pid(click.IntRange):
    """The id of a process."""

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> Any:
        if isinstance(value, str) and not value.isdigit():
            self.fail(
                f"{value!r} is not a process id: see `cutrace ps`, or start a program with `cutrace record`",
                param,
                ctx,
            )
        return super().convert(value, param, ctx)


@click.command(epilog=KINDS_OF_ACTIVITY)
@options.output(
    "Capture to write (.bin), or a trace in any format of `cutrace convert`, named as for `cutrace record`.",
    default="run.bin",
)
@click.option(
    "--for",
    "duration",
    metavar="TIME",
    help="Stop after this time, e.g. 10s.  [default: until Ctrl-C]",
)
@click.option(
    "--every",
    metavar="TIME",
    help="Start a recording of length --for every TIME, e.g. 60s, and write run-1.bin, run-2.bin, ..., until Ctrl-C.",
)
@options.recording("attach")
@click.argument("pid", type=_Pid(min=1))
def attach(
    pid: int,
    output: Path,
    duration: str | None,
    every: str | None,
    **given: Any,
) -> None:
    """Record the CUDA and NVTX activity of process PID until Ctrl-C or its end. `cutrace arm` must have started it.

    The process goes on after the recording, and can be recorded again. The defaults of options are their values in
    `cutrace arm`. The time of --for counts from the first recorded call that launches GPU work.
    """
    seconds = None
    if duration is not None:
        seconds = length_of(duration)
    interval = None
    if every is not None:
        interval = parse_duration(every) / 1e9
    if interval is not None and seconds is None:
        raise CutraceError(
            "--every repeats a recording of a certain length: give that length with --for, e.g. --for 2s"
        )
    if interval is not None and seconds is not None and interval <= seconds:
        raise CutraceError(
            f"--every {every} leaves no time between recordings of {duration}: give a longer --every"
        )
    recorder = _Recorder(pid, Options.of(**given), duration)
    output = output_name(output, pid)
    check_name(output)
    begin = f"recording process {pid}:"
    if seconds is None:
        recorder.record(output, f"{begin} Ctrl-C ends it")
    elif interval is None:
        recorder.record(output, f"{begin} for {duration}, or until Ctrl-C")
    else:
        recorder.repeat(
            output, interval, f"{begin} for {duration} every {every}, until Ctrl-C"
        )


class _Recorder:
    """Records a process, each time for a duration (None: until its end). ``ended`` is true once the process has ended
    or a signal has ended the recording."""

    def __init__(self, pid: int, chosen: Options, duration: str | None) -> None:
        self.ended = False
        self._pid = pid
        self._options = chosen
        self._duration = duration
        self._files = 0

    def repeat(self, output: Path, interval: float, begin: str) -> None:
        """Record once in each interval, each time into a new file. Raises :class:`CutraceError` when the first
        recording cannot start. When a later recording cannot start, prints the reason and goes on."""
        first = time.monotonic()
        try:
            while not self.ended:
                try:
                    with reserved_output(output) as free:
                        self.record(free, begin)
                except CutraceError as error:
                    if not self._files or not Path(f"/proc/{self._pid}").exists():
                        raise
                    say(str(error))
                if not self.ended:
                    self._pause(interval - (time.monotonic() - first) % interval)
        except (KeyboardInterrupt, SystemExit):
            if not self._files:
                raise
            end_line()

    def record(self, output: Path, begin: str) -> None:
        """Make one recording, and print its contents."""
        attachment = Attachment(self._pid, output, self._options)
        attachment.start()
        # Only recordings of the newest rows have dumps. Their option may be one of `cutrace arm`.
        signal.signal(signal.SIGUSR2, lambda *_: _dump(attachment))
        try:
            with signals_blocked({signal.SIGUSR2}):  # Its handler prints, too.
                say(begin)
            if self._duration is None:
                self.ended = attachment.wait()
            else:
                self.ended = attachment.record_for(self._duration)
            signal.signal(signal.SIGUSR2, signal.SIG_IGN)
            if self.ended:
                say(f"process {self._pid} has ended")
        except (KeyboardInterrupt, SystemExit):
            # The capture is written after Ctrl-C, SIGTERM and SIGHUP, too.
            signal.signal(signal.SIGUSR2, signal.SIG_IGN)
            self.ended = True
            end_line()
        # A signal during the write, such as a second Ctrl-C, ends the loop after this file.
        with collected(HELD) as late:
            self._finish(attachment)
        if late:
            self.ended = True

    def _finish(self, attachment: Attachment) -> None:
        recording = attachment.stop()
        for running in recording.running:
            say(
                f"process {running} still writes: {attachment.path} has what it had written by now"
            )
        if recording.trouble:
            say(recording.trouble)
        if recording.output is None:
            sentence = f"nothing was recorded of process {self._pid}"
            if not recording.trouble:
                sentence += ": run `cutrace ps`"
            raise CutraceError(sentence)
        self._files += 1
        summarize(recording)

    def _pause(self, seconds: float) -> None:
        """Wait for the next recording, or for the end of the process."""
        if wait_for_end(self._pid, seconds):
            say(f"process {self._pid} has ended")
            self.ended = True


def _dump(attachment: Attachment) -> None:
    """Write a dump to the first free name of ``run-1.bin``, ``run-2.bin``, ..."""
    name = free_output(attachment.path.with_suffix(".bin"))
    try:
        if attachment.dump(name):
            say(f"{name} holds the newest rows")
        else:
            say("there is nothing to dump yet")
    except CutraceError as error:
        say(str(error))
