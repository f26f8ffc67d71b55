"""Golden files: the reviewed GPU work of tests, and its comparison with new runs.

This package needs neither pytest nor a GPU. docs/internals/golden.md describes the files and the rules.
"""

from .changes import Accepted, Change, accept, digest, propose, write_changes
from .compare import Comparison, Row, compare, confirmed, limits
from .difference import Difference, difference, differences
from .environment import check_variant, environment, recorded_on, variant
from .files import existing, golden_files, read, text, write
from .model import (
    Codes,
    Entry,
    Interval,
    Module,
    Observed,
    Span,
    Verdict,
    counters_in,
    is_counter,
    joined,
    split,
)
from .naming import artifact_path, golden_path
from .rules import (
    MODES,
    Budget,
    Rules,
    Update,
    parse_budget,
    parse_counters,
    parse_gate,
    parse_ignore,
    parse_own,
    parse_tolerance,
    parse_update,
)
from .stale import StaleCheck, check, collected_ids, deselected_in, prune
from .update import merged, observed

__all__ = [
    "MODES", "Accepted", "Budget", "Change", "Codes", "Comparison", "Difference", "Entry", "Interval", "Module",
    "Observed", "Row", "Rules", "Span", "StaleCheck", "Update", "Verdict", "accept", "artifact_path", "check",
    "check_variant", "collected_ids", "compare", "confirmed", "counters_in", "deselected_in", "difference",
    "differences", "digest", "environment", "existing", "golden_files", "golden_path", "is_counter", "joined",
    "limits", "merged", "observed", "parse_budget", "parse_counters", "parse_gate", "parse_ignore", "parse_own",
    "parse_tolerance", "parse_update", "propose", "prune", "read", "recorded_on", "split", "text",
    "variant", "write", "write_changes",
]  # fmt: skip
