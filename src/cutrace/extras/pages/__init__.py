"""Pages of a trace: timeline, flame graph, kernels, memory."""

from __future__ import annotations

from ...plugins import Verb, hookimpl


@hookimpl
def cutrace_verbs() -> list[Verb]:
    line = "Write a page of a trace: timeline, flame graph, kernels, memory."
    return [Verb("view", line, "cutrace.extras.pages.verbs.view:view")]
