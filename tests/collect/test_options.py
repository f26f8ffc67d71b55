"""The options of a capture, and the string in which the collector reads them."""

from __future__ import annotations

import importlib
import re
from dataclasses import dataclass
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from cutrace.cli import options as cli_options
from cutrace.collect import Options
from cutrace.collect.options import OptionArguments, option
from cutrace.collect.standby import length_of
from cutrace.errors import CutraceError

DOCS = Path(__file__).parents[2] / "docs"


def test_the_text_has_a_line_for_each_option():
    options = Options.of(
        kinds="kernel, nvtx,kernel", api="none", cuda_graph="graph", nvtx=False, max_memory="64MiB", cupti="/x"
    )
    assert options.text(directory="/tmp/d").splitlines() == [
        "directory=/tmp/d", "kinds=kernel,nvtx", "api=none", "graph=graph", "nvtx=0", "max_memory=67108864", "cupti=/x",
    ]  # fmt: skip


def test_what_is_not_given_is_left_to_the_collector():
    assert Options().text(output="/tmp/f").splitlines() == ["output=/tmp/f"]


def test_paths_are_made_absolute_since_the_program_may_change_its_folder():
    assert Options().text(output="f.bin").splitlines()[0] == f"output={Path.cwd() / 'f.bin'}"


@pytest.mark.parametrize("name", ["a;b", "a\nb"])
def test_a_path_that_would_read_as_another_option_is_refused(name):
    with pytest.raises(CutraceError, match="choose another"):
        Options().text(directory=f"/tmp/{name}")


@pytest.mark.parametrize(
    ("options", "hint"),
    [
        ({"kinds": "kernel,warp"}, "'warp'.*choose from default, kernel"),
        ({"kinds": []}, "choose from"),
        ({"api": "some"}, "launch, all, none"),
        ({"cuda_graph": "edge"}, "node, graph"),
        ({"max_size": "big"}, "512MiB"),
        ({"max_size": 1}, "64 KiB or more"),
        ({"max_size": "1e3"}, "512MiB"),
        ({"max_memory": "1K"}, "1 MiB or more"),
        ({"max_memory": "9999999T"}, "up to 8000 TiB"),
        ({"stacks": "sync,free"}, "'free'.*choose from sync, alloc, copy, launch"),
        ({"stacks": ""}, "choose from sync"),
        ({"stacks": []}, "choose from sync"),
        ({"stacks": "launch:1/0"}, "launch:1/N"),
        ({"stacks": "launch:1/-3"}, "launch:1/N"),
        ({"stacks": "launch:2/3"}, "launch:1/N"),
        ({"stacks": "launch:"}, "launch:1/N"),
        ({"stacks": "launch:1/4294967296"}, "launch:1/N"),
        ({"stacks": "sync:1/10"}, "only launches"),
        ({"stacks_min": "20us"}, "needs stacks"),
        ({"stacks": "sync", "stacks_min": "soon"}, "1.5s"),
        ({"stacks": "sync", "stacks_min": 0}, "1ns or more"),
        ({"stacks": "sync", "stacks_min": "9999999999s"}, "1ns or more"),
    ],
)
def test_a_wrong_value_is_answered_with_the_right_ones(options, hint):
    with pytest.raises(CutraceError, match=hint):
        Options.of(**options)


@pytest.mark.parametrize(
    ("stacks", "line"),
    [
        ("launch:1/100, sync", "stacks=sync,launch:100"),
        (["copy", "alloc"], "stacks=alloc,copy"),
        ("launch:1/1", "stacks=launch"),
        ("sync,launch:1/7,sync,launch", "stacks=sync,launch"),
    ],
)
def test_stacks_are_written_as_the_collector_reads_them(stacks, line):
    assert Options.of(stacks=stacks).text(output="/f").splitlines() == ["output=/f", line]


@pytest.mark.parametrize(("least", "ns"), [("20us", 20_000), (500_000, 500_000), ("7ns", 7)])
def test_short_calls_can_be_left_without_stacks(least, ns):
    lines = Options.of(stacks="sync", stacks_min=least).text(output="/f").splitlines()
    assert lines == ["output=/f", "stacks=sync", f"stacks_min_ns={ns}"]


@pytest.mark.parametrize("duration", [10, "10us", 0.5, "soon"])
def test_a_recording_of_an_attachment_has_a_length(duration):
    with pytest.raises(CutraceError, match=r"1ms or more|is not a time"):
        length_of(duration)


@dataclass(frozen=True)
class OptionsWithColour(Options):
    """The options with an additional one."""

    colour: str | None = option(
        "Record kernels of this `colour` only.",
        choices=("red", "blue"),
        default="red",
        example="blue",
        verbs=("record", "attach"),
        key="color",
    )


def test_one_more_field_is_one_more_option_everywhere():
    chosen = OptionsWithColour.of(colour="blue")
    assert chosen.text(output="/f").splitlines() == ["output=/f", "color=blue"]
    with pytest.raises(CutraceError, match="colour='green' is unknown: choose one of red, blue"):
        OptionsWithColour.of(colour="green")

    commands = {}
    for verb in ("record", "arm", "attach"):

        @click.command()
        @cli_options.recording(verb, OptionsWithColour)
        def command(**given):
            click.echo(OptionsWithColour.of(**given).text(output="/f"))

        commands[verb] = command
    assert CliRunner().invoke(commands["attach"], ["--colour", "blue"]).stdout == "output=/f\ncolor=blue\n"
    help = " ".join(CliRunner().invoke(commands["record"], ["--help"]).stdout.split())
    assert "--colour [red|blue] Record kernels of this colour only. [default: red]" in help
    assert "--colour" not in CliRunner().invoke(commands["arm"], ["--help"]).stdout


def test_the_typed_arguments_are_those_of_the_options():
    rows = {row.keyword: row for row in Options.declared().values()}
    types = {name: given.__forward_arg__ for name, given in OptionArguments.__annotations__.items()}
    assert list(types) == list(rows)
    assert {name for name, given in types.items() if given == "bool"} == {
        name for name, row in rows.items() if row.switch is not None
    }
    assert {name for name, given in types.items() if "int" in given and "str" not in given} == {
        name for name, row in rows.items() if row.number
    }
    for name, row in rows.items():
        if row.choices:
            assert types[name] == f"Literal{list(row.choices)}"


def test_every_verb_has_its_options_with_their_names():
    for verb in ("record", "arm", "attach"):
        command = importlib.import_module(f"cutrace.cli.{verb}").__dict__[verb]
        given = {option for parameter in command.params for option in parameter.opts}
        rows = Options.declared().values()
        assert {row.flag for row in rows if verb in row.verbs} == given & {row.flag for row in rows}


def test_the_collector_parses_and_documents_every_key():
    source = (DOCS.parent / "src/cutrace/native/collector/core/options.cpp").read_text()
    parsed = set(re.findall(r'if \(key == "(\w+)"\) return', source))
    written = {row.key for row in Options.declared().values() if row.key}
    assert written <= parsed
    page = (DOCS / "internals" / "collector.md").read_text()
    documented = re.findall(r"^\| (`\w+`(?:, `\w+`)*) \| ", page, re.MULTILINE)
    assert parsed <= set(re.findall(r"\w+", " ".join(documented)))


def test_every_example_can_be_given():
    for row in Options.declared().values():
        if row.switch is None:
            assert row.parsed(int(row.example) if row.number else row.example)


def test_an_unknown_argument_is_a_sentence():
    with pytest.raises(CutraceError, match="no option 'last_ms': did you mean last"):
        Options.of(last_ms=3)


def test_metrics_and_program_counters_are_not_sampled_together():
    with pytest.raises(CutraceError, match="give `sample=` once"):
        Options.of(sample=("metrics", "pc"))
