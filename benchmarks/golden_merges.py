"""Merge golden files with git: two branches edit different tests of one module, and git merges the branches.

Each trial makes a repository with a module of tests and its golden file, and two branches that add, change and rename
different tests at random. Trials in which git cannot merge the module itself are repeated with other edits, and
counted. The golden file must merge without a conflict. An update of the merged module must leave it unchanged. An
update without a golden file must write the same file except for the marks, because the mark of a renamed test stems
from its first name. Needs no GPU and no pytest: the work of a test is read from its source. Prints one JSON object.
"""

from __future__ import annotations

import ast
import json
import random
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from cutrace.golden import Change, Observed, existing, golden_path, joined, read, text, write_changes
from cutrace.golden.stale import check, prune
from workloads import options
from workloads.machine import facts

MODULE = "tests/test_ops.py"
ENVIRONMENT = "sm_90"
KERNELS = ("softmax", "gemm", "reduce", "cast", "copy", "gather", "scatter", "layer_norm")
HEADER = "import pytest\n\nfrom mylib import launch\n"
EDITS = ("add", "change", "rename")


@dataclass
class Test:
    """A test of the module: its name, its number of parameters (0 for none), and its launches by kernel."""

    name: str
    parameters: int
    launches: dict[str, int]

    def source(self) -> str:
        lines = []
        argument = ""
        if self.parameters:
            lines.append(f'@pytest.mark.parametrize("n", range({self.parameters}))')
            argument = "n"
        lines.append(f"def {self.name}({argument}):")
        lines += [f'    launch("{kernel}", {count})' for kernel, count in self.launches.items()]
        return "\n".join(lines) + "\n"


@dataclass
class Editor:
    """Makes random modules, and random edits of some of their tests. Each new name is used once."""

    chosen: random.Random
    used: int = 0
    #: The number of edits of each kind in the trial.
    edits: dict[str, int] = field(default_factory=lambda: dict.fromkeys(EDITS, 0))

    def test(self) -> Test:
        self.used += 1
        kernels = self.chosen.sample(KERNELS, self.chosen.randint(1, 3))
        launches = {kernel: self.chosen.randint(1, 4) for kernel in kernels}
        parameters = self.chosen.choice([0, 0, 0, 2, 3])
        return Test(f"test_{self._word()}_{self.used}", parameters, launches)

    def _word(self) -> str:
        return self.chosen.choice(("forward", "backward", "cache", "decode", "loss", "mask", "norm"))

    def edited(self, tests: list[Test], own: set[str], edits: int) -> list[Test]:
        """Return the module after ``edits`` edits of the tests named in ``own``. New tests are inserted after one of
        these."""
        tests = list(tests)
        names = self.chosen.sample(sorted(own), edits)
        for name in names:
            at = [test.name for test in tests].index(name)
            kind = self.chosen.choice(EDITS)
            self.edits[kind] += 1
            old = tests[at]
            if kind == "add":
                tests.insert(at + 1, self.test())
            elif kind == "rename":
                tests[at] = Test(self.test().name, old.parameters, old.launches)
            else:
                tests[at] = Test(old.name, old.parameters, self.test().launches)
        return tests


def module_text(tests: list[Test]) -> str:
    return "\n\n".join([HEADER, *(test.source() for test in tests)])


def measured(source: str) -> Iterator[tuple[str, int, Observed]]:
    """Yield the tests of a module with their lines and the work that a session would measure."""
    for node in ast.parse(source).body:
        if not isinstance(node, ast.FunctionDef):
            continue
        launches = {}
        for statement in node.body:
            call: Any = statement
            kernel, count = call.value.args
            launches[kernel.value] = count.value
        observed = Observed({"": {"kernel_launches": launches}})
        if not node.decorator_list:
            yield node.name, node.lineno, observed
            continue
        mark: Any = node.decorator_list[0]
        for parameter in range(mark.args[1].args[0].value):
            yield f"{node.name}[{parameter}]", mark.lineno, observed


def update(folder: Path, root: Path) -> None:
    """Update the golden file as a developer would: write values that are missing or differ, and remove values without a
    test."""
    path = golden_path(root, joined(MODULE, ""))
    source = folder / MODULE
    known = existing(path, MODULE).tests
    changes = []
    ids = []
    for test, line, observed in measured(source.read_text()):
        ids.append(joined(MODULE, test))
        entry = known.get(test, {})
        if entry.get(ENVIRONMENT) != observed:
            change = Change(joined(MODULE, test), path, ENVIRONMENT, observed, line, source=source)
            changes.append(change)
    write_changes(changes)
    prune(check(root, folder, ids).stale, root)


def git(folder: Path, *words: str) -> int:
    """Run git without the user's configuration. Returns its exit status."""
    identity = ["-c", "user.name=a", "-c", "user.email=a@b.c", "-c", "commit.gpgsign=false"]
    return subprocess.run(["git", *identity, *words], cwd=folder, capture_output=True).returncode


def without_marks(path: Path) -> str:
    return text(replace(read(path), marks={}))


def commit(folder: Path, tests: list[Test]) -> None:
    (folder / MODULE).write_text(module_text(tests))
    update(folder, folder / "golden")
    git(folder, "add", "-A")
    git(folder, "commit", "-qm", "tests")


@dataclass(frozen=True)
class Trial:
    """The result of a trial: whether the module and the golden file merged, and whether an update leaves the merged
    golden file as it is."""

    source_merged: bool
    merged: bool = False
    same: bool = False
    edits: dict[str, int] = field(default_factory=dict)


def trial(seed: int, folder: Path, tests: int, edits: int) -> Trial:
    """Make two branches from this seed in an empty folder, and merge them."""
    editor = Editor(random.Random(seed))
    base = [editor.test() for _ in range(tests)]
    names = [test.name for test in base]
    editor.chosen.shuffle(names)
    (folder / "tests").mkdir()
    git(folder, "init", "-q", "-b", "main")
    commit(folder, base)
    halves = {"ours": set(names[: tests // 2]), "theirs": set(names[tests // 2 :])}
    for branch, own in halves.items():
        git(folder, "checkout", "-q", "-b", branch, "main")
        commit(folder, editor.edited(base, own, edits))
    git(folder, "merge", "-q", "ours")
    source = (folder / MODULE).read_text()
    if "<<<<<<<" in source:
        return Trial(source_merged=False)
    path = golden_path(folder / "golden", joined(MODULE, ""))
    merged = path.read_text()
    if "<<<<<<<" in merged:
        return Trial(True, edits=editor.edits)
    update(folder, folder / "golden")
    update(folder, folder / "fresh")
    unchanged = path.read_text() == merged
    fresh = golden_path(folder / "fresh", joined(MODULE, ""))
    same = unchanged and without_marks(path) == without_marks(fresh)
    return Trial(True, merged=True, same=same, edits=editor.edits)


def run(trials: int, seed: int, tests: int, edits: int) -> dict[str, Any]:
    """Run trials until ``trials`` modules have merged."""
    conflicts = []
    different = []
    done = []
    drawn = 0
    while len(done) < trials:
        with tempfile.TemporaryDirectory() as folder:
            result = trial(seed + drawn, Path(folder), tests, edits)
        if result.source_merged:
            done.append(result)
            if not result.merged:
                conflicts.append(seed + drawn)
            elif not result.same:
                different.append(seed + drawn)
        drawn += 1
    return {
        "benchmark": "golden_merges",
        "trials": trials,
        "tests": tests,
        "edits_of_each_branch": edits,
        "edits": {kind: sum(result.edits[kind] for result in done) for kind in EDITS},
        "first_seed": seed,
        "modules_in_conflict": drawn - trials,
        "golden_files_in_conflict": conflicts,
        "golden_files_unlike_an_update": different,
        "machine": facts(),
    }


def main() -> None:
    parser = options.parser(__doc__, out=None)
    parser.add_argument("--trials", type=int, default=50, help="merged modules (%(default)s)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--tests", type=int, default=40, help="tests of the module before (%(default)s)")
    parser.add_argument("--edits", type=int, default=8, help="edits of each branch (%(default)s)")
    arguments = parser.parse_args()
    result = run(arguments.trials, arguments.seed, arguments.tests, arguments.edits)
    text = json.dumps(result, indent=1) + "\n"
    if arguments.out:
        arguments.out.write_text(text)
    print(text, end="")
    if result["golden_files_in_conflict"] or result["golden_files_unlike_an_update"]:
        raise SystemExit("golden files did not merge")


if __name__ == "__main__":
    main()
