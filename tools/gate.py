"""Run the project's checks, each in a process of its own under a time budget, and say what ran and what did not.

    tools/gate.py lint              style, types, import rules, drift of generated code and documents
    tools/gate.py test [ARG...]     the test suite without its long tests; ARGs go to pytest
    tools/gate.py test-long         the whole suite, long tests included
    tools/gate.py ci                test and lint together, nothing twice: what .ci/run runs
    tools/gate.py conformance       outside judges of our protocols
    tools/gate.py fuzz              the property tests with many more examples

Each folder of tests/ is one pytest process: one that hangs costs its own budget and is reported, the others still
run. Exit status: 0 if everything that ran passed and something ran, 1 otherwise. Start it from .venv, made by
tools/bootstrap dev; standard library only.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
TESTS: Final = ROOT / "tests"
BIN: Final = Path(sys.executable).parent

PACKAGES: Final = (
    "pydanube_core",
    "pydanube_storage",
    "pydanube_broker",
    "pydanube_client",
    "pydanube_admin",
    "pydanube_mcp",
    "pydanube_cli",
)

# Budgets in seconds. They bound a hang, they are not goals: `make test` has 15 minutes. A loaded machine may take
# three times that, and CI must then report what is wrong, not that it was slow.
LINT_BUDGET_S: Final = 300.0
GROUP_BUDGET_S: Final = 1200.0
# Folders whose subfolders are groups of their own, and those that have a target of their own (`make conformance`).
SPLIT_GROUPS: Final = frozenset({"broker"})
OWN_TARGETS: Final = frozenset({"conformance"})
# All test groups together; a group that does not fit any more is cut or reported as not run.
TEST_BUDGET_S: Final = 900.0
CI_TEST_BUDGET_S: Final = 2700.0
LONG_BUDGET_S: Final = 4 * 3600.0
# After SIGABRT pytest has this long to print where its threads are.
LAST_WORDS_S: Final = 3.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One check: a command, and how long it may take."""

    name: str
    command: tuple[str, ...]
    budget_s: float
    # pytest steps write their counts here.
    report: Path | None = None


@dataclass(slots=True)
class Tally:
    """What has happened so far."""

    lines: list[str] = field(default_factory=list)
    not_run: list[str] = field(default_factory=list)
    failed_steps: int = 0
    ran_steps: int = 0
    passed: int = 0
    failed: int = 0
    skipped: int = 0

    def add(self, step: Step, *, ok: bool, took_s: float, note: str = "") -> None:
        self.ran_steps += 1
        self.failed_steps += not ok
        verdict = "ok" if ok else "FAILED"
        self.lines.append(f"  {verdict:<7} {took_s:6.1f} s  {step.name}{f': {note}' if note else ''}")

    def print(self) -> int:
        """Print the summary; the exit status."""
        print("\n== what ran", flush=True)
        print("\n".join(self.lines) or "  nothing")
        if self.not_run:
            print("== not run")
            print("\n".join(f"  {line}" for line in self.not_run))
        if self.passed or self.failed or self.skipped:
            # The form that says in any language how many tests ran; it stands alone on its line.
            print(f"\n{self.passed} passed, {self.failed} failed, {self.skipped} skipped")
        elif self.failed_steps:
            print(f"\n{self.failed_steps} of {self.ran_steps} checks failed")
        sys.stdout.flush()
        return 1 if self.failed_steps or not self.ran_steps else 0


def carry_out(step: Step, tally: Tally) -> None:
    """Run one step to its end or to the end of its budget."""
    print(f"\n== {step.name}", flush=True)
    started = time.monotonic()
    note = ""
    # A session of its own, so that a hanging step goes with the processes it started.
    child = subprocess.Popen(step.command, cwd=ROOT, stdin=subprocess.DEVNULL, start_new_session=True)
    try:
        status = child.wait(timeout=step.budget_s)
    except subprocess.TimeoutExpired:
        note = f"still running after {step.budget_s:.0f} s, stopped"
        print(f"{step.name}: {note}; the tracebacks show where", flush=True)
        stop(child, ask_for_tracebacks=True)
        status = 1
    except BaseException:
        stop(child, ask_for_tracebacks=False)
        raise
    if step.report is not None:
        counts = read_report(step.report)
        if counts is None:
            note = note or f"ended with status {status} before pytest could count"
            tally.failed += 1
            status = status or 1
        else:
            total, failed, skipped = counts
            tally.passed += total - failed - skipped
            tally.failed += failed
            tally.skipped += skipped
            if status == 5 and total == 0:  # nothing but deselected tests in this folder
                status, note = 0, "no test selected"
    tally.add(step, ok=status == 0, took_s=time.monotonic() - started, note=note)


def stop(child: subprocess.Popen[bytes], *, ask_for_tracebacks: bool) -> None:
    """End the step and everything it started."""
    if ask_for_tracebacks:
        child.send_signal(signal.SIGABRT)
        with suppress(subprocess.TimeoutExpired):
            child.wait(timeout=LAST_WORDS_S)
    with suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()


def read_report(path: Path) -> tuple[int, int, int] | None:
    """(all, failed or in error, skipped) of a pytest run; None if it did not live to write its report."""
    try:
        suites = ElementTree.parse(path).getroot().iter("testsuite")
        numbers = [
            (
                int(s.get("tests", 0)),
                int(s.get("failures", 0)) + int(s.get("errors", 0)),
                int(s.get("skipped", 0)),
            )
            for s in suites
        ]
    except (OSError, ElementTree.ParseError):
        return None
    return (sum(n[0] for n in numbers), sum(n[1] for n in numbers), sum(n[2] for n in numbers))


def lint_steps(*, with_import_rules: bool) -> list[Step]:
    python = sys.executable
    ruff = str(BIN / "ruff")
    commands: list[tuple[str, tuple[str, ...]]] = [
        ("ruff check", (ruff, "check", "--quiet", ".")),
        ("ruff format", (ruff, "format", "--quiet", "--check", ".")),
        (
            "types (mypy --strict)",
            (python, "-m", "mypy", "--strict", *(word for name in PACKAGES for word in ("-p", name))),
        ),
        (
            "types of tools/",
            (
                python,
                "-m",
                "mypy",
                "--strict",
                *(str(p.relative_to(ROOT)) for p in sorted(ROOT.glob("tools/*.py"))),
            ),
        ),
        ("generated code drift", (python, "tools/gen_protos.py", "--check")),
        ("generated documents drift", (python, "tools/gen_docs.py", "--check")),
    ]
    steps = [Step(name=name, command=command, budget_s=LINT_BUDGET_S) for name, command in commands]
    if with_import_rules:
        house = (python, "-m", "pytest", "tests/house/test_import_rules.py")
        steps.append(Step(name="import rules", command=house, budget_s=LINT_BUDGET_S))
    return steps


def groups() -> list[Path]:
    """The folders of tests/ that hold tests, quick and fundamental ones first."""
    found: list[Path] = []
    for folder in sorted(TESTS.iterdir()):
        if not folder.is_dir() or folder.name in OWN_TARGETS:
            continue
        parts = sorted(folder.iterdir()) if folder.name in SPLIT_GROUPS else [folder]
        found += [part for part in parts if part.is_dir() and any(part.rglob("test_*.py"))]
    order = {"core": 0, "storage": 1, "crash": 8, "e2e": 9}
    return sorted(found, key=lambda folder: (order.get(folder.name, 5), folder.name))


def pytest_steps(reports: Path, *, pytest_arguments: Sequence[str], budget_s: float | None) -> list[Step]:
    steps = []
    for folder in groups():
        name = str(folder.relative_to(ROOT))
        report = reports / f"{name.replace('/', '-')}.xml"
        command = (
            sys.executable,
            "-m",
            "pytest",
            name,
            f"--junit-xml={report}",
            *pytest_arguments,
        )
        steps.append(Step(name=name, command=command, budget_s=budget_s or GROUP_BUDGET_S, report=report))
    return steps


def run_all(steps: Iterable[Step], tally: Tally, *, budget_s: float | None = None) -> None:
    """Carry out steps one after the other; `budget_s` bounds them together."""
    deadline = None if budget_s is None else time.monotonic() + budget_s
    for step in steps:
        if deadline is None:
            carry_out(step, tally)
        elif (left_s := deadline - time.monotonic()) <= 0:
            tally.not_run.append(f"{step.name}: the budget of {budget_s:.0f} s for all tests is used up")
            tally.failed_steps += 1
        else:
            budget = min(step.budget_s, left_s)
            carry_out(Step(name=step.name, command=step.command, budget_s=budget, report=step.report), tally)


def run_tests(
    tally: Tally, *arguments: str, budget_s: float = TEST_BUDGET_S, each_s: float | None = None
) -> None:
    with tempfile.TemporaryDirectory(prefix="pydanube-reports-") as reports:
        steps = pytest_steps(Path(reports), pytest_arguments=arguments, budget_s=each_s)
        run_all(steps, tally, budget_s=budget_s)


def conformance(tally: Tally) -> None:
    """What has judges of its own; what could not be judged is said."""
    folder = TESTS / "conformance"
    if any(folder.rglob("test_*.py")):
        command = (sys.executable, "-m", "pytest", "tests/conformance")
        run_all([Step(name="tests/conformance", command=command, budget_s=LONG_BUDGET_S)], tally)
    else:
        tally.not_run.append("tests/conformance: not written yet")
    tally.not_run.append("h2spec: no HTTP/2 server of our own yet; grpcio's is in use")
    tally.not_run.append(
        "official Go and Java clients: they are in no package registry that we could take them from"
    )


def main(arguments: Sequence[str]) -> int:
    tally = Tally()
    # `timeout` sends SIGTERM; like Ctrl-C it must take the running check along.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    word, rest = (arguments[0], list(arguments[1:])) if arguments else ("", [])
    try:
        match word:
            case "lint":
                run_all(lint_steps(with_import_rules=True), tally)
            case "test":
                run_tests(tally, "-m", "not long", *rest)
                tally.not_run.append("tests marked long: make test-long")
            case "test-long":
                run_tests(tally, *rest, budget_s=LONG_BUDGET_S, each_s=LONG_BUDGET_S)
            case "ci":
                run_all(lint_steps(with_import_rules=False), tally)
                # Second tries are printed (RERUN): a test that needs one on a slow machine is a debt, not a secret.
                run_tests(tally, "-m", "not long", "--reruns", "1", "-rsR", budget_s=CI_TEST_BUDGET_S)
                tally.not_run.append("tests marked long: make test-long")
                tally.not_run.append("conformance, fuzz, bench: make conformance, make fuzz, make bench")
            case "conformance":
                conformance(tally)
            case "fuzz":
                # The profile is a pytest plugin of ours in tools/.
                os.environ["PYTHONPATH"] = str(ROOT / "tools")
                fuzz = ("-m", "hypothesis", "-p", "fuzz_profile", "-o", "timeout=0", *rest)
                run_tests(tally, *fuzz, budget_s=LONG_BUDGET_S, each_s=LONG_BUDGET_S)
            case _:
                print(__doc__, file=sys.stderr)
                return 2
    except KeyboardInterrupt:
        tally.not_run.append("what followed: interrupted")
        tally.print()
        return 130
    return tally.print()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
