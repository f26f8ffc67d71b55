"""Golden files: what a test did on the GPU when it was last reviewed, and whether it still does.

Reading, comparing and writing them needs neither pytest nor a GPU. docs/golden.md describes the files and the rules.
"""

from .compare import Comparison, Row, compare, confirmed, limits, recorded_on
from .difference import Difference, difference, differences
from .files import golden_files, read, text, write
from .model import Golden, Interval, Section, Verdict, gpu_name
from .naming import golden_path
from .proposed import Accepted, accept, propose
from .rules import Rules, parse_gate, parse_limits, parse_tolerance
from .stale import Check, Stale, check, collected_ids, prune
from .update import MODES, Mode, measured, merged, unsettled, updated

__all__ = [
    "MODES",
    "Accepted",
    "Check",
    "Comparison",
    "Difference",
    "Golden",
    "Interval",
    "Mode",
    "Row",
    "Rules",
    "Section",
    "Stale",
    "Verdict",
    "accept",
    "check",
    "collected_ids",
    "compare",
    "confirmed",
    "difference",
    "differences",
    "golden_files",
    "golden_path",
    "gpu_name",
    "limits",
    "measured",
    "merged",
    "parse_gate",
    "parse_limits",
    "parse_tolerance",
    "propose",
    "prune",
    "read",
    "recorded_on",
    "text",
    "unsettled",
    "updated",
    "write",
]
