"""A server of the Model Context Protocol: verbs that read traces, as tools.

Each tool is made from the command of a verb. It has the arguments and options of the command line, except names of
files to write. The answer is the JSON of ``--format json``. Calls run one after the other on a thread, so the server
still answers pings.
"""

from __future__ import annotations

import io
import re
import threading
from collections.abc import Mapping
from contextlib import redirect_stderr, redirect_stdout
from importlib.metadata import version
from typing import Any

import click

from ...cli import cli, status_of
from ...errors import CutraceError, package

#: The verbs that become tools, where they are installed.
VERBS = ("info", "stats", "diff", "sql", "why")
#: The largest number of rows of a table, unless a call sets ``limit``.
ROWS = 100

# Parameters that tools lack: the server sets them, or they name files to write.
_LEFT_OUT = ("output", "form", "as_json", "limit")
_LIMIT = {
    "type": "integer",
    "minimum": 0,
    "default": ROWS,
    "description": "Rows of a table; 0 for all.",
}
# The command line writes to sys.stdout and sys.stderr, which all threads share.
_one_call = threading.Lock()


def serve() -> None:
    """Serve on stdin and stdout until stdin ends. Raises :class:`CutraceError` when the package ``mcp`` is missing."""
    package("mcp", "the MCP server")
    import anyio
    from mcp.server.stdio import stdio_server

    async def run() -> None:
        served = server()
        async with stdio_server() as (received, sent):
            await served.run(received, sent, served.create_initialization_options())

    anyio.run(run)


def server() -> Any:
    """The server, as a ``mcp.server.lowlevel.Server``. The package ``mcp`` must be installed."""
    import anyio.to_thread
    from mcp import types
    from mcp.server.lowlevel import Server

    async def list_tools(*_: Any) -> Any:
        tools = [types.Tool.model_validate(tool) for tool in described()]
        return types.ListToolsResult(tools=tools)

    async def call_tool(_: Any, call: Any) -> Any:
        failed, texts = await anyio.to_thread.run_sync(
            answer, call.name, call.arguments or {}, abandon_on_cancel=True
        )
        # A list of Any fits the invariant type of mcp 2.3.
        content: list[Any] = [types.TextContent(type="text", text=t) for t in texts]
        return types.CallToolResult(content=content, is_error=failed)

    return Server(
        "cutrace",
        version=version("cutrace"),
        instructions="Read recordings of GPU programs. Times are nanoseconds, sizes bytes.",
        on_list_tools=list_tools,
        on_call_tool=call_tool,
    )


def described() -> list[dict[str, Any]]:
    """The tools as the protocol describes them."""
    return [_description(name, command) for name, command in _commands().items()]


def answer(name: str, arguments: Mapping[str, Any]) -> tuple[bool, list[str]]:
    """Call a tool. Returns whether it failed, and a list of strings: the answer, then the messages of the command line.
    A failure has one sentence."""
    try:
        words = _words(name, arguments)
    except CutraceError as error:
        return True, [str(error)]
    out = io.StringIO()
    said = io.StringIO()
    with _one_call, redirect_stdout(out), redirect_stderr(said):
        status = status_of(words, {name: {"limit": ROWS}})
    texts = [out.getvalue(), said.getvalue().replace("cutrace: ", "")]
    if status == 2:
        texts = [_with_arguments(name, texts[1])]
    return status == 2, [text.strip() for text in texts if text.strip()]


def _with_arguments(name: str, message: str) -> str:
    """The message with names of arguments instead of options. Command lines in it keep their options."""
    arguments = {"--limit": "limit"}
    for key, parameter in _parameters(_commands()[name]).items():
        arguments |= dict.fromkeys(parameter.opts, key)

    def argument(found: re.Match[str]) -> str:
        return arguments.get(found[0], found[0])

    return re.sub("`[^`]*`|--[a-z-]+", argument, message)


def _commands() -> dict[str, click.Command]:
    """The commands of the verbs, without verbs of extras that are not installed."""
    context = click.Context(cli)
    found = {name: cli.get_command(context, name) for name in VERBS}
    return {name: command for name, command in found.items() if command is not None}


def _description(name: str, command: click.Command) -> dict[str, Any]:
    parameters = _parameters(command)
    properties = {key: _schema(parameter) for key, parameter in parameters.items()}
    if _has_limit(command):
        properties["limit"] = _LIMIT
    required = [key for key, parameter in parameters.items() if _is_needed(parameter)]
    return {
        "name": name,
        "description": (command.help or "").replace("\b", ""),
        "inputSchema": {
            "type": "object",
            "properties": properties,
            "required": required,
            "additionalProperties": False,
        },
        "annotations": {"readOnlyHint": True},
    }


def _parameters(command: click.Command) -> dict[str, click.Parameter]:
    """The parameters of the command that a tool may set, by name."""
    return {
        parameter.name: parameter
        for parameter in command.params
        if parameter.name and parameter.expose_value and parameter.name not in _LEFT_OUT
    }


def _has_limit(command: click.Command) -> bool:
    return any(parameter.name == "limit" for parameter in command.params)


def _is_needed(parameter: click.Parameter) -> bool:
    return parameter.required or parameter.nargs == -1


def _schema(parameter: click.Parameter) -> dict[str, Any]:
    """The JSON Schema of a parameter."""
    schema: dict[str, Any] = {"type": "string"}
    if isinstance(parameter.type, click.Choice):
        schema["enum"] = list(parameter.type.choices)
    elif isinstance(parameter.type, click.types.IntParamType):
        schema["type"] = "integer"
    elif getattr(parameter, "is_flag", False):
        schema["type"] = "boolean"
    if _is_list(parameter):
        schema = {"type": "array", "items": schema}
    help = getattr(parameter, "help", None)
    if help:
        schema["description"] = help
    return schema


def _is_list(parameter: click.Parameter) -> bool:
    return parameter.multiple or parameter.nargs == -1


def _words(name: str, arguments: Mapping[str, Any]) -> list[str]:
    """The command line of a call. Raises :class:`CutraceError` for a call that does not fit the description."""
    command = _commands().get(name)
    if command is None:
        raise CutraceError(
            f"there is no tool {name!r}: call one of {', '.join(_commands())}"
        )
    parameters = _parameters(command)
    options = ["--format", "json"]
    values: list[str] = []
    left = dict(arguments)
    known = list(parameters)
    if _has_limit(command):
        known.append("limit")
        if "limit" in left:
            options.append(f"--limit={left.pop('limit')}")
    for key, parameter in parameters.items():
        given = left.pop(key, None)
        texts = _texts(name, parameter, given)
        if isinstance(parameter, click.Argument):
            values += texts
        elif given is True:
            options.append(parameter.opts[0])
        else:
            options += [f"{parameter.opts[0]}={text}" for text in texts]
    if left:
        raise CutraceError(
            f"the tool {name} has no argument {', '.join(left)}: it has {', '.join(known)}"
        )
    return [name, *options, "--", *values]


def _texts(name: str, parameter: click.Parameter, given: Any) -> list[str]:
    """The values of a parameter as the command line takes them."""
    if given is None and _is_needed(parameter):
        raise CutraceError(
            f"the tool {name} needs the argument {parameter.name}: give it"
        )
    if given in (None, False, True):
        return []
    texts = list(map(str, given)) if isinstance(given, list) else [str(given)]
    if "-" in texts:
        raise CutraceError("- is stdin, which carries the protocol: name a file")
    return texts
