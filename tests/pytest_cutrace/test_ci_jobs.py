"""The action for GitHub and the template for GitLab. Their steps run here as on a runner."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from support.fakedriver import FakeDriver

yaml = pytest.importorskip("yaml")
ROOT = Path(__file__).parents[2]
ACTION = yaml.safe_load((ROOT / ".github" / "actions" / "cutrace" / "action.yml").read_text())
TEMPLATE = yaml.safe_load((ROOT / "templates" / "cutrace.yml").read_text())[".cutrace"]
TESTS = """
import fakegpu, pytest

@pytest.mark.gpu_limit(kernel_launches=2)
def test_budget():
    for _ in range(launches):
        fakegpu.launch("scale")

@pytest.mark.gpu_limit(kernel_launches=1)
@pytest.mark.parametrize("name", ["a b", "$(touch pwned)"])
def test_same(name):
    fakegpu.launch("scale")
"""
#: A replacement for gh. It records its arguments and the body. It lists the comments in the file `comments`, or fails.
GH = """#!/bin/bash
printf '%s\\n' "$@" > "$CALLS/gh-$(ls "$CALLS" | wc -l)"
for word in "$@"; do
  case $word in
    body=@*) cp "${word#body=@}" "$CALLS/body" ;;
    --paginate) cat "$CALLS/../comments" ;;
  esac
done
"""
CURL = """#!/bin/sh
printf '%s\\n' "$@" > "$CALLS/curl-$(ls "$CALLS" | wc -l)"
for word in "$@"; do
  case $word in
    body@*) cp "${word#body@}" "$CALLS/body" ;;
    *per_page=*) cat "$CALLS/../comments" ;;
  esac
done
"""
GITHUB = {
    "GITHUB_JOB": "gpu-tests",
    "GITHUB_REPOSITORY": "o/r",
    "GITHUB_RUN_ID": "7",
    "GITHUB_SERVER_URL": "https://github.example",
}
GITLAB = {
    "CI_API_V4_URL": "https://gitlab.example/api/v4",
    "CI_JOB_ID": "7",
    "CI_JOB_NAME": "gpu-tests",
    "CI_JOB_URL": "https://gitlab.example/o/r/-/jobs/7",
    "CI_MERGE_REQUEST_IID": "3",
    "CI_MERGE_REQUEST_PROJECT_ID": "1",
    "CI_PROJECT_ID": "1",
    "CUTRACE_NOTE_TOKEN": "secret",
}


class Runner:
    """A machine of a CI system with a checkout of a suite."""

    def __init__(self, folder: Path, driver: FakeDriver) -> None:
        self.checkout = folder / "checkout"
        self.calls = folder / "calls"
        self.summary = folder / "summary.md"
        self.uploads: list[dict[str, Any]] = []
        self._folder = folder
        for made in (self.checkout, self.calls, folder / "temp", folder / "bin"):
            made.mkdir()
        for name, program in (("gh", GH), ("curl", CURL)):
            (folder / "bin" / name).write_text(program)
            (folder / "bin" / name).chmod(0o755)
        (folder / "comments").touch()
        (self.checkout / "pytest.ini").write_text("[pytest]\naddopts = -p no:cacheprovider -p cutrace\n")
        self.write(3)
        inherited = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "CUTRACE_"))}
        self.environment = driver.environment(inherited) | {
            "CALLS": str(self.calls),
            "PATH": f"{folder / 'bin'}{os.pathsep}{inherited['PATH']}",
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
            "PYTHONDONTWRITEBYTECODE": "1",
        }

    def write(self, launches: int) -> None:
        (self.checkout / "test_ops.py").write_text(f"launches = {launches}\n{TESTS}")

    def comments(self, text: str) -> None:
        (self._folder / "comments").write_text(text)

    def called(self) -> list[list[str]]:
        """The arguments of each call of ``gh`` or ``curl``."""
        paths = [*self.calls.glob("gh-*"), *self.calls.glob("curl-*")]
        paths.sort(key=lambda path: path.stat().st_mtime_ns)
        return [path.read_text().splitlines() for path in paths]

    def body(self) -> str:
        return (self.calls / "body").read_text()

    def shell(self, script: str, *shell: str, **variables: str) -> tuple[int, str]:
        done = subprocess.run(
            [*shell, "-c", script], cwd=self.checkout, env=self.environment | variables, timeout=120,
            text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        return done.returncode, done.stdout

    def act(self, **inputs: str) -> tuple[list[int], str, dict[str, str]]:
        """Run the steps of the action. Returns the statuses of its scripts, the output, and the action's outputs."""
        context = {f"inputs.{name}": str(about.get("default", "")) for name, about in ACTION["inputs"].items()}
        for name, value in inputs.items():
            context[f"inputs.{name.replace('_', '-')}"] = value
        context |= {"inputs.python": sys.executable, "github.token": "t", "github.event.pull_request.number": "3"}
        outputs = self._folder / "outputs"
        github = GITHUB | {
            "GITHUB_OUTPUT": str(outputs),
            "GITHUB_STEP_SUMMARY": str(self.summary),
            "RUNNER_TEMP": str(self._folder / "temp"),
        }
        statuses, output = [], ""
        for step in ACTION["runs"]["steps"]:
            outputs.write_text("")
            # Every step except the first has a condition of this form.
            needed = re.search(r"always\(\) && (\S+) != ''$", step.get("if", ""))
            assert needed or not statuses
            if needed and not context.get(needed[1]):
                continue
            if "run" in step:
                variables = {name: filled(value, context) for name, value in step["env"].items()}
                assert filled(step["working-directory"], context) == "."
                status, printed = self.shell(
                    step["run"], "bash", "--noprofile", "--norc", "-eo", "pipefail", **github, **variables
                )
                statuses.append(status)
                output += printed
            else:
                assert step["uses"].startswith("actions/upload-artifact@")
                self.uploads.append({name: filled(str(value), context) for name, value in step["with"].items()})
                outputs.write_text("artifact-url=https://github.example/page\n")
            for line in outputs.read_text().splitlines():
                name, _, value = line.partition("=")
                context[f"steps.{step.get('id')}.outputs.{name}"] = value
        return statuses, output, {name: filled(one["value"], context) for name, one in ACTION["outputs"].items()}

    def job(self, before: str = "", **variables: str) -> tuple[int, str]:
        """Run the scripts of the template. The lines of `before_script` and `script` run in one shell, and the lines of
        `after_script` in another."""
        known = GITLAB | {"CI_PROJECT_DIR": str(self.checkout)} | TEMPLATE["variables"]
        known |= {"CUTRACE_PYTHON": sys.executable, **variables}
        status, output = self.shell("\n".join(["set -e", before, *TEMPLATE["script"]]), "sh", **known)
        after, printed = self.shell("\n".join(["set -e", *TEMPLATE["after_script"]]), "sh", **known)
        assert after == 0, printed
        return status, output + printed


def filled(text: str, context: Mapping[str, str]) -> str:
    return re.sub(r"\$\{\{ ([\w.-]+) \}\}", lambda match: context.get(match[1], ""), text)


@pytest.fixture
def runner(fake_driver: FakeDriver, tmp_path: Path) -> Runner:
    return Runner(tmp_path, fake_driver)


def test_the_action_fails_with_a_summary_artifacts_and_a_comment(runner: Runner) -> None:
    statuses, output, results = runner.act(comment="true", artifact="h100")
    assert statuses == [1, 0], output
    assert results["status"] == "1"
    assert json.loads(Path(results["report"]).read_text())["kind"] == "cutrace report"
    assert results["page"] == "https://github.example/page"
    page, files = runner.uploads
    assert Path(page["path"]).name == "report-h100.html"
    assert Path(page["path"]).read_text().startswith("<!doctype html>")
    kept = files["path"].split()
    assert (files["name"], [Path(path).name for path in kept]) == (
        "h100", ["report.json", "report.html", "proposed", "tests"],
    )  # fmt: skip
    summary = runner.summary.read_text()
    assert "(https://github.example/page)" in summary
    download, opening = re.findall(r"```sh\n(.*)\n", summary)[:2]
    assert download == "gh run download 7 --repo o/r --name h100 --dir h100-7"
    trace = opening.removeprefix("cutrace open h100-7/")
    assert (runner.checkout / ".cutrace" / trace).is_file()
    listed, posted = runner.called()
    assert listed[:3] == ["api", "--paginate", "repos/o/r/issues/3/comments"]
    assert posted[:5] == ["api", "--silent", "--method", "POST", "repos/o/r/issues/3/comments"]
    assert runner.body().startswith("<!-- cutrace: h100 -->\n## cutrace\n")
    assert opening in runner.body()


def test_the_comment_of_an_earlier_run_is_replaced_and_arguments_are_words(runner: Runner) -> None:
    """A quoted argument stays one word, and nothing in it runs as a command."""
    runner.write(2)
    runner.comments("41\n42\n")
    arguments = "-k 'budget or touch' \"--junitxml=$(touch pwned) x.xml\""
    statuses, output, _ = runner.act(comment="true", require="false", arguments=arguments)
    assert statuses == [0, 0], output
    assert "2 passed, 1 deselected" in output
    assert "--method\nPATCH\nrepos/o/r/issues/comments/41" in "\n".join(runner.called()[-1])
    assert not (runner.checkout / "pwned").exists()
    assert (runner.checkout / "$(touch pwned) x.xml").is_file()


def test_the_action_says_why_there_is_no_report_and_refuses_a_bad_name(runner: Runner) -> None:
    statuses, _, results = runner.act(arguments="--no-such-option")
    assert (statuses, results["status"]) == ([4, 0], "4")
    assert runner.summary.read_text() == "cutrace has no report: pytest ended with status 4\n"
    for bad in ({"artifact": "a/b"}, {"arguments": "'open"}):
        statuses, output, _ = runner.act(**bad)
        assert len(statuses) == 1, output
        assert statuses[0] > 0, output
    assert runner.called() == []


def test_a_process_that_ends_without_a_report_fails_the_job(runner: Runner) -> None:
    (runner.checkout / "test_ops.py").write_text("import os\n\ndef test_end():\n    os._exit(0)\n")
    statuses, output, results = runner.act()
    assert (statuses[0], results["status"]) == (1, "1"), output
    assert "pytest ended without a report" in output
    status, output = runner.job()
    assert status == 1
    assert "pytest ended without a report" in output


def test_the_template_fails_with_artifacts_and_a_note(runner: Runner) -> None:
    runner.comments('[{"id": 5, "body": "no"}]')
    status, output = runner.job()
    assert status == 1, output
    for path in TEMPLATE["artifacts"]["paths"]:
        assert (runner.checkout / path).exists() or path.endswith("proposed/")
    assert "cutrace.state" in (runner.checkout / TEMPLATE["artifacts"]["reports"]["junit"]).read_text()
    _, posted = runner.called()
    assert "POST" in posted
    assert posted[-1] == "https://gitlab.example/api/v4/projects/1/merge_requests/3/notes"
    body = runner.body()
    assert body.startswith("<!-- cutrace: gpu-tests -->\n## cutrace\n")
    assert "(https://gitlab.example/o/r/-/jobs/7/artifacts/file/.cutrace/report.html)" in body
    assert (
        'curl --fail --location --header "PRIVATE-TOKEN: $GITLAB_TOKEN" https://gitlab.example/api/v4/projects/1'
        in body
    )
    trace = re.findall(r"^cutrace open cutrace-7/(.*)$", body, re.MULTILINE)[0]
    assert (runner.checkout / trace).is_file()


def test_a_job_of_the_template_in_another_folder(runner: Runner) -> None:
    runner.write(2)
    runner.comments("[]")
    (runner.checkout / "python").mkdir()
    status, output = runner.job("cd python", PYTEST_ADDOPTS="..", CUTRACE_MODE="--cutrace")
    assert status == 0, output
    assert (runner.checkout / TEMPLATE["artifacts"]["reports"]["junit"]).is_file()


def test_the_note_of_an_earlier_pipeline_is_replaced(runner: Runner) -> None:
    runner.write(2)
    runner.comments('[{"id": 5, "body": "no"}, {"id": 6, "body": "<!-- cutrace: gpu-tests -->..."}]')
    status, output = runner.job(PYTEST_ADDOPTS="-k budget", CUTRACE_MODE="--cutrace")
    assert status == 0, output
    assert "2 deselected" in output
    assert "PUT" in runner.called()[-1]
    assert runner.called()[-1][-1].endswith("/merge_requests/3/notes/6")


def test_no_expression_is_part_of_a_script() -> None:
    for step in ACTION["runs"]["steps"]:
        assert "${{" not in step.get("run", "")
