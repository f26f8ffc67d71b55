"""``python -m cutrace.extras.agents``: serve on stdin and stdout until stdin ends."""

from __future__ import annotations

import sys

from ...errors import CutraceError


def main() -> None:
    """Serve until stdin ends. Exits with status 2 and one sentence when the package ``mcp`` is missing."""
    from .server import serve

    if len(sys.argv) > 1:
        _refuse(
            "the MCP server takes no arguments: a client sends requests to its stdin"
        )
    try:
        serve()
    except CutraceError as error:
        _refuse(str(error))


def _refuse(sentence: str) -> None:
    print(f"cutrace: {sentence}", file=sys.stderr)
    sys.exit(2)


if __name__ == "__main__":
    main()
