"""The skill file, and the MCP server as a client sees it."""

from __future__ import annotations

import json
import os
import re
import sys
import threading
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

from captures import training_steps
from cutrace.extras.agents import server
from cutrace.extras.agents.__main__ import main
from cutrace.golden import golden_path, write_changes
from support import small_capture
from support.measured import change


@pytest.fixture
def capture(tmp_path: Path) -> str:
    return str(training_steps(tmp_path / "run.bin", steps=2))


def test_the_skill_file_has_what_agents_read_first() -> None:
    text = files("cutrace").joinpath("extras", "agents", "SKILL.md").read_text()
    empty, head, body = text.split("---\n", 2)
    assert empty == ""
    assert body.startswith("\n# cutrace\n")
    lines = dict(line.split(": ", 1) for line in head.splitlines())
    assert lines.keys() == {"name", "description"}
    assert re.fullmatch("[a-z0-9-]{1,64}", lines["name"])
    assert 0 < len(lines["description"]) <= 1024
    assert ": " not in lines["description"]  # YAML would need quotes around it
    assert "](" not in body  # no links, because the file is copied without other pages


def test_a_tool_has_the_options_of_its_verb() -> None:
    tools = {tool["name"]: tool["inputSchema"] for tool in server.described()}
    assert set(tools) <= set(server.VERBS)
    assert {"info", "stats", "diff", "sql"} <= set(tools)
    stats = tools["stats"]
    assert stats["properties"]["reports"]["type"] == "array"
    assert stats["properties"]["names"]["enum"] == ["stable", "full"]
    assert stats["required"] == ["sources"]
    for schema in tools.values():
        assert not {"output", "form", "format"} & set(schema["properties"])


def test_an_answer_is_the_json_of_the_command(capture: str) -> None:
    failed, (text,) = server.answer("stats", {"sources": [capture], "reports": ["cuda_gpu_kern_sum"], "limit": 1})
    found = json.loads(text)
    assert not failed
    assert found["kind"] == "cutrace stats"
    (report,) = found["reports"]
    assert (report["name"], len(report["rows"])) == ("cuda_gpu_kern_sum", 1)


def test_a_difference_is_an_answer(capture: str, tmp_path: Path) -> None:
    other = str(training_steps(tmp_path / "other.bin", steps=3))
    required = next(tool for tool in server.described() if tool["name"] == "diff")["inputSchema"]["required"]
    failed, texts = server.answer("diff", dict(zip(required, [capture, other], strict=True)))
    assert not failed
    assert json.loads(texts[0])["failed"]


def test_golden_files_are_compared(tmp_path: Path) -> None:
    nodeid = "test_a.py::test_it"
    write_changes([change(tmp_path, nodeid, memset_count=2)])
    golden = golden_path(tmp_path, nodeid)
    failed, texts = server.answer("diff", {"before": str(golden), "after": [str(golden)]})
    assert not failed, texts
    assert json.loads(texts[0])["kind"] == "cutrace golden changes"


def test_sql_has_at_most_the_default_number_of_rows(capture: str) -> None:
    pytest.importorskip("duckdb")
    failed, (text,) = server.answer("sql", {"sources": [capture], "query": "select range as n from range(1000)"})
    assert not failed
    assert len(json.loads(text)["reports"][0]["rows"]) == server.ROWS


def test_losses_are_said_beside_the_answer(tmp_path: Path) -> None:
    path = small_capture(tmp_path / "a.bin")
    path.write_bytes(path.read_bytes()[:-20])
    failed, texts = server.answer("stats", {"sources": [str(path)]})
    assert not failed
    assert len(texts) == 2
    assert not texts[1].startswith("cutrace:")


@pytest.mark.parametrize(
    ("name", "arguments", "sentence"),
    [
        ("erase", {}, "there is no tool 'erase': call one of info, stats, diff"),
        ("stats", {}, "the tool stats needs the argument sources: give it"),
        ("stats", {"sources": ["absent.bin"]}, "cannot read absent.bin: No such file"),
        ("stats", {"sources": ["-"]}, "- is stdin, which carries the protocol: name a file"),
        ("stats", {"sources": ["--output=a.csv"]}, "cannot read --output=a.csv"),
        ("stats", {"sources": ["a.bin"], "output": "b"}, "the tool stats has no argument output: it has sources"),
        (
            "sql",
            {"sources": ["a.bin"], "query": "", "rows": 1},
            "no argument rows: it has sources, query, clock, limit",
        ),
        ("info", {"sources": ["a.bin"], "limit": 1}, "the tool info has no argument limit: it has sources, clock"),
        ("stats", {"sources": ["a.bin"], "limit": "x"}, "Invalid value for 'limit'"),
        ("diff", {"before": "a.toml", "after": "a.toml", "fail_on": ["none"]}, "fail_on is not for two golden files"),
        ("why", {"capture": "absent.bin"}, "absent.bin"),
    ],
)
def test_a_bad_call_has_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, arguments: dict[str, Any], sentence: str
) -> None:
    monkeypatch.chdir(tmp_path)
    failed, (text,) = server.answer(name, arguments)
    assert failed
    assert sentence in text
    assert "\n" not in text
    assert list(tmp_path.iterdir()) == []


def test_a_client_of_the_protocol_calls_tools(capture: str) -> None:
    mcp = pytest.importorskip("mcp")
    anyio = pytest.importorskip("anyio")

    async def talk() -> None:
        async with mcp.Client(server.server()) as client:
            assert client.server_info.name == "cutrace"
            tools = {tool.name for tool in (await client.list_tools()).tools}
            assert tools == {tool["name"] for tool in server.described()}
            good = await client.call_tool("stats", {"sources": [capture], "reports": ["gpu_sum"]})
            assert not good.is_error
            assert json.loads(good.content[0].text)["reports"][0]["name"] == "gpu_sum"
            bad = await client.call_tool("info", {"sources": ["absent.bin"]})
            assert bad.is_error
            assert "absent.bin" in bad.content[0].text

    anyio.run(talk)


def test_stdin_and_stdout_carry_the_protocol_alone(capture: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("mcp")
    requests, to_server = os.pipe()
    from_server, answers = os.pipe()
    monkeypatch.setattr(sys, "stdin", os.fdopen(requests))
    monkeypatch.setattr(sys, "stdout", os.fdopen(answers, "w"))
    serving = threading.Thread(target=server.serve, daemon=True)
    serving.start()
    hello = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}}
    with os.fdopen(to_server, "w") as sent, os.fdopen(from_server) as received:

        def ask(number: int, method: str, **params: Any) -> dict[str, Any]:
            sent.write(json.dumps({"jsonrpc": "2.0", "id": number, "method": method, "params": params}) + "\n")
            sent.flush()
            answer = json.loads(received.readline())
            assert answer["id"] == number
            return dict(answer["result"])

        assert ask(1, "initialize", **hello)["serverInfo"]["name"] == "cutrace"
        sent.write('{"jsonrpc": "2.0", "method": "notifications/initialized"}\n')
        found = ask(2, "tools/call", name="stats", arguments={"sources": [capture], "reports": ["gpu_sum"]})
        assert not found["isError"]
        assert ask(3, "tools/call", name="stats", arguments={"sources": ["absent.bin"]})["isError"]
        sent.close()
        serving.join(30)
        assert not serving.is_alive()
        sys.stdout.close()
        assert received.read() == ""


def test_without_the_package_there_is_a_sentence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "mcp", None)
    monkeypatch.setattr(sys, "argv", ["agents"])
    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code == 2
    assert capsys.readouterr().err.startswith("cutrace: the MCP server needs mcp: ")
