"""Parses a page like a browser, for tests."""

from __future__ import annotations

import json
from html.parser import HTMLParser


class Page(HTMLParser):
    """A page as a browser parses it: tags with attributes, and the contents of scripts by id."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: dict[str, str] = {}
        self.words = ""
        self._script: str | None = None
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        self._script = dict(attrs).get("id") or "" if tag == "script" else None

    def handle_endtag(self, tag):
        self._script = None

    def handle_data(self, data):
        if self._script is not None:
            self.scripts[self._script] = self.scripts.get(self._script, "") + data
        else:
            self.words += data

    def case(self, number: int) -> dict:
        return json.loads(self.scripts[f"c{number}"])
