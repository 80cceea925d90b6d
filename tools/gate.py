"""Run the project's checks, each in a process of its own under a time budget, and say what ran and what did not.

    tools/gate.py lint              style, types, import rules, drift of generated code and documents
    tools/gate.py test [ARG...]     the test suite without its long tests; ARGs go to pytest (--durations=30: the slowest)
    tools/gate.py test-long         the whole suite, long tests included
    tools/gate.py ci                test and lint together, nothing twice: what .ci/run runs
    tools/gate.py conformance       outside judges of our protocols
    tools/gate.py javascript        the client for JavaScript and TypeScript, long tests included
    tools/gate.py deploy            deploy/ with the tools it is for, as far as they are installed
    tools/gate.py fuzz              the property tests with many more examples, and atheris where there is one

Each folder of tests/ is one pytest process, the longest are several: one that hangs costs its own budget and is reported,
the others still run. Four of them run side by side, the longest begin first, and each prints when it ends. In `ci` a group's
failed and unreached tests get a second try, in a process and with brokers of their own; what passes only then is listed as
that. The last lines name every failed test with its error. Exit status: 0 if everything that ran passed and something ran,
1 otherwise. Start it from .venv, made by tools/bootstrap dev; standard library only.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path
from typing import BinaryIO, Final

ROOT: Final = Path(__file__).resolve().parent.parent
TESTS: Final = ROOT / "tests"
BIN: Final = Path(sys.executable).parent

PACKAGES: Final = (
    "pydanube_core",
    "pydanube_storage",
    "pydanube_broker",
    "pydanube",
    "pydanube_admin",
    "pydanube_mcp",
    "pydanube_cli",
    "pydanube_tui",
    "pydanube_connect",
)

# An environment of its own: tools/environment.py says why.
SPARK_PYTHON: Final = ROOT / ".venv-spark" / "bin" / "python"
SPARK_ENVIRONMENT: Final = (str(ROOT / "tools" / "bootstrap"), "spark")
NO_SPARK: Final = "PySpark is not installed (make env-spark)"

# Budgets in seconds. They bound a hang, they are not goals: `make test` should take 15 minutes at most. A loaded machine may take
# three times that, and CI must then report what is wrong, not that it was slow.
LINT_BUDGET_S: Final = 300.0
GROUP_BUDGET_S: Final = 1200.0
# Folders whose subfolders are groups of their own, and those that have a target of their own (`make conformance`, `make test-deploy`,
# `make test-cluster`).
SPLIT_GROUPS: Final = frozenset({"broker"})
OWN_TARGETS: Final = frozenset({"cluster", "conformance", "deploy"})
# All test groups together; a group that does not fit any more is cut or reported as not run.
TEST_BUDGET_S: Final = 1800.0
CI_TEST_BUDGET_S: Final = 3600.0
# One test there, in place of pyproject.toml's limit: hanging and slow must not look the same.
CI_TEST_LIMIT_S: Final = 300
LONG_BUDGET_S: Final = 4 * 3600.0
# More failures than this in a group are no accident, and a second try would only take time.
SECOND_TRY_TESTS: Final = 10
# Groups of tests side by side, two more than processors: half of the time they wait, for processes to start and for disks.
LANES: Final = min(2, os.cpu_count() or 1) + 2
# Groups of minutes, the longest first: begun late, one of them would run alone at the end.
LONG_GROUPS: Final = (
    "e2e", "admin", "cli", "crash", "client", "connect", "mcp", "links", "tui", "moves", "relay", "subscription", "home", "house",
    "storage", "serving", "chain", "journal", "cluster",
)  # fmt: skip
# So many processes, each with every n-th file: alone such a folder would take longer than a lane has.
PARTS: Final = {"e2e": 2, "admin": 2, "cli": 2}
# In the environment of every process that a step starts, and of what those start: the mark of this run.
MARK: Final = "PYDANUBE_GATE_RUN"
RUN: Final = uuid.uuid4().hex
# After SIGABRT pytest has this long to print where its threads are.
LAST_WORDS_S: Final = 3.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One check: a command, and how long it may take."""

    name: str
    command: tuple[str, ...]
    budget_s: float
    # pytest steps: the folders or tests, and what tools/gate_report.py writes of them.
    select: tuple[str, ...] = ()
    report: Path | None = None
    # What makes the environment that it needs, and why it is not run where that fails.
    prepare: tuple[str, ...] = ()
    without: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The outcome of one test."""

    verdict: str  # passed, failed, skipped, or "not reached"
    why: str | None = None

    @property
    def bad(self) -> bool:
        return self.verdict in ("failed", "not reached")


@dataclass(slots=True)
class Tally:
    """The outcomes of a run so far."""

    lines: list[str] = field(default_factory=list)
    not_run: list[str] = field(default_factory=list)
    # (test, its error) of what failed for good, and of what passed at its second try only.
    failures: list[tuple[str, str]] = field(default_factory=list)
    second_tries: list[tuple[str, str]] = field(default_factory=list)
    failed_steps: int = 0
    ran_steps: int = 0
    passed: int = 0
    failed: int = 0
    skipped: int = 0
    not_reached: int = 0
    # Steps side by side: what they print, and what they add here, is not mixed.
    lock: threading.Lock = field(default_factory=threading.Lock)
    children: set[subprocess.Popen[bytes]] = field(default_factory=set)
    interrupted: bool = False
    #: in CI a step whose environment cannot be made fails
    everything: bool = False

    def add(self, step: Step, *, ok: bool, took_s: float, note: str = "") -> None:
        self.ran_steps += 1
        self.failed_steps += not ok
        verdict = "ok" if ok else "FAILED"
        self.lines.append(f"  {verdict:<7} {took_s:6.1f} s  {step.name}{f': {note}' if note else ''}")

    def count(self, outcomes: Mapping[str, Outcome]) -> None:
        """Add the tests of a group."""
        for test, outcome in outcomes.items():
            match outcome.verdict:
                case "passed":
                    self.passed += 1
                case "skipped":
                    self.skipped += 1
                case "not reached":
                    self.not_reached += 1
                case _:
                    self.failed += 1
                    self.failures.append((test, outcome.why or outcome.verdict))

    def print(self) -> int:
        """Print the summary, what failed at its end (CI shows the end of what it printed); the exit status."""
        print("\n== what ran", flush=True)
        print("\n".join(self.lines) or "  nothing")
        if self.not_run:
            print("== not run")
            print("\n".join(f"  {line}" for line in self.not_run))
        for title, tests in (("passed at the second try only", self.second_tries), ("failed", self.failures)):
            if tests:
                print(f"== {title}")
                print("\n".join(f"  {test}\n      {why}" for test, why in tests))
        if self.not_reached:
            print(
                f"\n{self.not_reached} not reached: their group ended before them, for a reason given above"
            )
        if self.passed or self.failed or self.skipped:
            # The form that says in any language how many tests ran; it stands alone on its line.
            print(f"\n{self.passed} passed, {self.failed} failed, {self.skipped} skipped")
        elif self.failed_steps:
            print(f"\n{self.failed_steps} of {self.ran_steps} checks failed")
        sys.stdout.flush()
        return 1 if self.failed_steps or not self.ran_steps else 0


def carry_out(step: Step, tally: Tally, *, second_try: bool = False, apart: bool = False) -> None:
    """Run one step to its end or to the end of its budget.

    Args:
        second_try: its failed tests once more, by themselves.
        apart: another step runs beside it: print when it has ended.
    """
    started = time.monotonic()
    if step.prepare and not prepared(step, tally):
        return
    with tempfile.TemporaryFile() if apart else nullcontext() as output:
        status, note = run(step, tally, output)
        outcomes: dict[str, Outcome] = {}
        tries: list[tuple[str, str]] = []
        if step.report is not None:
            outcomes = read_report(step.report)
            again = open_tests(outcomes) if second_try else ()
            if again:
                left_s = max(1.0, step.budget_s - (time.monotonic() - started))
                name = f"{step.name}, {len(again)} again"
                report = step.report.with_suffix(".again")
                more = replace(step, name=name, select=again, budget_s=left_s, report=report)
                status, note = run(more, tally, output)
                for test, outcome in read_report(report, expected=again).items():
                    if outcome.verdict == "passed":
                        tries.append((test, outcomes[test].why or outcomes[test].verdict))
                    outcomes[test] = outcome
                note = note or f"{len(again)} in a second try"
            left = [test for test, outcome in outcomes.items() if outcome.verdict == "not reached"]
            if left:
                why = "not reached: the process ended in it, or just before"
                outcomes[left.pop(0)] = Outcome(verdict="failed", why=why)
            failed = sum(outcome.verdict == "failed" for outcome in outcomes.values())
            if not outcomes and status == 5:  # nothing but deselected tests in this folder
                status, note = 0, "no test selected"
            elif not outcomes or (status and not failed):
                # the fault is pytest's, or a fixture's of the whole run
                outcomes[step.name] = Outcome(
                    verdict="failed", why=note or f"pytest ended with status {status}"
                )
            for count, what in ((failed, "failed"), (len(left), "not reached")):
                if count:
                    note = f"{note + ', ' if note else ''}{count} {what}"
            status = status or int(failed > 0)
        with tally.lock:
            if tally.interrupted:
                return
            if output is not None:
                output.seek(0)
                shutil.copyfileobj(output, sys.stdout.buffer)
                sys.stdout.buffer.flush()
            tally.second_tries += tries
            tally.count(outcomes)
            tally.add(step, ok=status == 0, took_s=time.monotonic() - started, note=note)


def prepared(step: Step, tally: Tally) -> bool:
    """Make the environment of a step; where that fails, count the step as not run."""
    making = Step(name=f"environment of {step.name}", command=step.prepare, budget_s=step.budget_s)
    with tempfile.TemporaryFile() as output:
        status, note = run(making, tally, output)
        if status == 0:
            return True
        with tally.lock:
            if not tally.interrupted:
                output.seek(0)
                shutil.copyfileobj(output, sys.stdout.buffer)
                tally.not_run.append(f"{step.name}: {note or step.without}")
                tally.failed_steps += tally.everything
    return False


def open_tests(outcomes: Mapping[str, Outcome]) -> tuple[str, ...]:
    """The tests that deserve a second try: what failed by accident, and what was not reached because of it."""
    failed = [test for test, outcome in outcomes.items() if outcome.verdict == "failed"]
    if len(failed) > SECOND_TRY_TESTS or any("::" not in test for test in failed):
        return ()  # that many, or a file that cannot even be read, are no accident
    return tuple(test for test, outcome in outcomes.items() if outcome.bad)


def run(step: Step, tally: Tally, output: BinaryIO | None) -> tuple[int, str]:
    """(exit status, what to say about it); what it prints goes to `output`, or where ours does."""

    def say(text: str) -> None:
        if output is None:
            print(text, flush=True)
        else:
            output.write(f"{text}\n".encode())
            output.flush()

    say(f"\n== {step.name}")
    with tempfile.TemporaryDirectory(prefix="dg-", ignore_cleanup_errors=True) as scratch:
        # The brokers of a group write gigabytes: what its tests leave goes with it. Sockets live there: a short path.
        environment = dict(os.environ) | {"TMPDIR": scratch, MARK: RUN}
        # Hundreds of processes load numpy. As a broker does it.
        environment.setdefault("OPENBLAS_NUM_THREADS", "1")
        if step.report is not None:
            environment["PYDANUBE_GATE_REPORT"] = str(step.report)
        return run_in(environment, step, tally, output, say)


def run_in(
    environment: Mapping[str, str],
    step: Step,
    tally: Tally,
    output: BinaryIO | None,
    say: Callable[[str], None],
) -> tuple[int, str]:
    with tally.lock:
        if tally.interrupted:
            return 1, "interrupted"
        # A session of its own, so that a hanging step goes with the processes it started.
        child = subprocess.Popen(
            (*step.command, *step.select),
            cwd=ROOT,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=None if output is None else subprocess.STDOUT,
            start_new_session=True,
        )
        tally.children.add(child)
        if output is not None:
            print(f"   … {step.name}", flush=True)
    try:
        return child.wait(timeout=step.budget_s), ""
    except subprocess.TimeoutExpired:
        note = f"still running after {step.budget_s:.0f} s, stopped"
        say(f"{step.name}: {note}; the tracebacks show where")
        stop(child, ask_for_tracebacks=True)
        return 1, note
    except BaseException:
        stop(child, ask_for_tracebacks=False)
        raise
    finally:
        with tally.lock:
            tally.children.discard(child)


def stop(child: subprocess.Popen[bytes], *, ask_for_tracebacks: bool) -> None:
    """End the step and everything it started."""
    if ask_for_tracebacks:
        child.send_signal(signal.SIGABRT)
        with suppress(subprocess.TimeoutExpired):
            child.wait(timeout=LAST_WORDS_S)
    with suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()


def end_what_is_left() -> None:
    """Kill what carries this run's mark: brokers have sessions of their own and outlive the tests that started them."""
    line = f"{MARK}={RUN}".encode()
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # ended by now, or another user's
            if line in (process / "environ").read_bytes().split(b"\0"):
                os.kill(int(process.name), signal.SIGKILL)


def read_report(path: Path, *, expected: Sequence[str] = ()) -> dict[str, Outcome]:
    """Return the outcome of each test of a pytest run, in its order, also if the run died: the rest is "not reached".

    Files that could not be collected are in it by their path. `expected` are tests that must be in it.
    """
    outcomes = {test: Outcome(verdict="not reached") for test in expected}
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError:
        return outcomes
    for text in lines:
        try:
            line = json.loads(text)
        except ValueError:  # the line that it was writing when it died
            continue
        if "selected" in line:
            outcomes |= {
                test: outcomes.get(test, Outcome(verdict="not reached")) for test in line["selected"]
            }
        elif "broken" in line:
            outcomes[line["broken"]] = Outcome(verdict="failed", why=line["why"])
        else:
            outcomes[line["test"]] = Outcome(verdict=line["outcome"], why=line["why"])
    return outcomes


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
            "types of tools/ and evals/",
            (
                python,
                "-m",
                "mypy",
                "--strict",
                *(
                    str(p.relative_to(ROOT))
                    for p in sorted([*ROOT.glob("tools/*.py"), *ROOT.glob("evals/*.py")])
                ),
            ),
        ),
        ("texts of tools", (python, "tools/tool_texts.py")),
        ("prose", (python, "tools/prose.py", "--limit")),
        ("generated code drift", (python, "tools/gen_protos.py", "--check")),
        ("generated admin client drift", (python, "tools/gen_admin_client.py", "--check")),
        ("generated documents drift", (python, "tools/gen_docs.py", "--check")),
        ("generated JavaScript code drift", (python, "tools/gen_javascript_protos.py", "--check")),
        ("generated alerts and dashboards drift", (python, "tools/gen_observability.py", "--check")),
    ]
    steps = [Step(name=name, command=command, budget_s=LINT_BUDGET_S) for name, command in commands]
    if has_spark():
        steps.append(types_of_spark())
    if with_import_rules:
        house = (python, "-m", "pytest", "tests/house/test_import_rules.py")
        steps.append(Step(name="import rules", command=house, budget_s=LINT_BUDGET_S))
    return steps


def has_spark() -> bool:
    """Return whether the types of PySpark can be looked at, here or in its own environment."""
    return SPARK_PYTHON.exists() or find_spec("pyspark") is not None


def types_of_spark() -> Step:
    python = str(SPARK_PYTHON) if SPARK_PYTHON.exists() else sys.executable
    mypy = (sys.executable, "-m", "mypy", "--strict", "--python-executable", python)
    return Step(
        name="types of pydanube_spark", command=(*mypy, "-p", "pydanube_spark"), budget_s=LINT_BUDGET_S
    )


def javascript_missing() -> str | None:
    """Why the tests of the JavaScript client are no part of `make test` here; None where they are."""
    if shutil.which("node") is None:
        return "Node is not installed"
    if not (ROOT / "clients" / "javascript" / "node_modules").is_dir():
        return "its packages are not installed; make test-javascript does it"
    return None


def groups() -> list[Path]:
    """The folders of tests/ that hold tests: the fundamental one first, then the long ones, quick ones last."""
    found: list[Path] = []
    for folder in sorted(TESTS.iterdir()):
        if not folder.is_dir() or folder.name in OWN_TARGETS:
            continue
        if folder.name == "javascript" and javascript_missing():
            continue
        parts = sorted(folder.iterdir()) if folder.name in SPLIT_GROUPS else [folder]
        found += [part for part in parts if part.is_dir() and any(part.rglob("test_*.py"))]
    # Spark's begins with its environment, so it is the first.
    order = {name: place for place, name in enumerate(("spark", "core", *LONG_GROUPS))}
    return sorted(found, key=lambda folder: (order.get(folder.name, len(order)), folder.name))


# `python -m` puts the directory it runs in, ROOT, on the path: plugins are found there as tools.NAME.
PYTEST: Final = (sys.executable, "-m", "pytest", "-p", "tools.gate_report")
# Their import loads Textual, a second of each pytest process, and only the console's tests compare pictures.
WITHOUT_PICTURES: Final = ("-p", "no:textual-snapshot", "-p", "no:syrupy")


def pytest_steps(reports: Path, *, pytest_arguments: Sequence[str], budget_s: float | None) -> list[Step]:
    steps = []
    for folder in groups():
        name = str(folder.relative_to(ROOT))
        report = reports / f"{name.replace('/', '-')}.jsonl"
        pictures = () if folder.name == "tui" else WITHOUT_PICTURES
        command = (*PYTEST, *pictures, *pytest_arguments)
        budget = budget_s or GROUP_BUDGET_S
        whole = Step(name=name, command=command, budget_s=budget, select=(name,), report=report)
        if folder.name == "spark":
            with_spark = (str(SPARK_PYTHON), *command[1:])
            steps.append(replace(whole, command=with_spark, prepare=SPARK_ENVIRONMENT, without=NO_SPARK))
            continue
        if (parts := PARTS.get(folder.name, 1)) == 1:
            steps.append(whole)
            continue
        files = [str(path.relative_to(ROOT)) for path in sorted(folder.rglob("test_*.py"))]
        for n in range(parts):
            part = f"{name}, part {n + 1} of {parts}"
            own = report.with_suffix(f".{n + 1}.jsonl")
            steps.append(replace(whole, name=part, select=tuple(files[n::parts]), report=own))
    return steps


def run_all(
    steps: Iterable[Step],
    tally: Tally,
    *,
    budget_s: float | None = None,
    second_try: bool = False,
    lanes: int = 1,
) -> None:
    """Carry out steps in their order, `lanes` at a time; `budget_s` bounds all."""
    deadline = None if budget_s is None else time.monotonic() + budget_s
    left = deque(steps)

    def work() -> None:
        while left:
            try:
                step = left.popleft()
            except IndexError:  # another lane has taken it
                return
            left_s = step.budget_s if deadline is None else min(step.budget_s, deadline - time.monotonic())
            if left_s > 0:
                carry_out(replace(step, budget_s=left_s), tally, second_try=second_try, apart=lanes > 1)
                continue
            with tally.lock:
                tally.not_run.append(f"{step.name}: the budget of {budget_s:.0f} s for all tests is used up")
                tally.failed_steps += 1

    if lanes == 1:
        work()
        return
    with ThreadPoolExecutor(lanes) as pool:
        working = [pool.submit(work) for _ in range(lanes)]
        try:
            for each in working:
                each.result()
        except BaseException:
            left.clear()
            with tally.lock:
                tally.interrupted = True
                children = list(tally.children)
            for child in children:
                stop(child, ask_for_tracebacks=False)
            raise


def run_tests(
    tally: Tally,
    *arguments: str,
    budget_s: float = TEST_BUDGET_S,
    each_s: float | None = None,
    second_try: bool = False,
) -> None:
    with tempfile.TemporaryDirectory(prefix="pydanube-reports-") as reports:
        steps = pytest_steps(Path(reports), pytest_arguments=arguments, budget_s=each_s)
        run_all(steps, tally, budget_s=budget_s, second_try=second_try, lanes=LANES)
    if missing := javascript_missing():
        tally.not_run.append(f"tests/javascript: {missing}")


def own_target(tally: Tally, folder: str) -> None:
    """A folder of tests that need more than Python; what could not be tried is said, each with its reason."""
    with tempfile.TemporaryDirectory(prefix="pydanube-reports-") as reports:
        report = Path(reports) / f"{folder}.jsonl"
        name = f"tests/{folder}"
        run_all(
            [Step(name=name, command=PYTEST, budget_s=LONG_BUDGET_S, select=(name,), report=report)], tally
        )
        tally.not_run += [
            f"{test}: {outcome.why}"
            for test, outcome in read_report(report).items()
            if outcome.verdict in ("skipped", "not reached")
        ]


def fuzz_guided(tally: Tally) -> None:
    """Coverage-guided fuzzing, where there is a fuzzer for this Python."""
    if find_spec("atheris") is None:
        tally.not_run.append(
            "the HTTP/2 connection under atheris: atheris is not made for this Python and system"
        )
        return
    seconds = int(os.environ.get("FUZZ_SECONDS", "120"))
    command = (sys.executable, "-m", "tools.fuzz_http2", f"-max_total_time={seconds}")
    run_all([Step(name="fuzz http2 (atheris)", command=command, budget_s=seconds + 120.0)], tally)


def keep_bytecode() -> None:
    """Hundreds of processes start here: without bytecode each compiles for a second or more. As `./danube` does it."""
    if os.environ.pop("PYTHONDONTWRITEBYTECODE", ""):
        os.environ.setdefault("PYTHONPYCACHEPREFIX", str(ROOT / ".venv" / "bytecode"))


def main(arguments: Sequence[str]) -> int:
    tally = Tally()
    keep_bytecode()
    # `timeout` sends SIGTERM; like Ctrl-C it must take the running check along.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    word, rest = (arguments[0], list(arguments[1:])) if arguments else ("", [])
    try:
        match word:
            case "lint":
                run_all(lint_steps(with_import_rules=True), tally)
                if not has_spark():
                    tally.not_run.append(f"types of pydanube_spark: {NO_SPARK}")
            case "test":
                run_tests(tally, "-m", "not long", *rest)
                tally.not_run.append("tests marked long: make test-long")
            case "test-long":
                run_tests(tally, *rest, budget_s=LONG_BUDGET_S, each_s=LONG_BUDGET_S)
            case "ci":
                tally.everything = True
                spark_first = not has_spark()  # its types are then checked when its tests have made it
                run_all(lint_steps(with_import_rules=False), tally)
                # Second tries are listed: a test that needs one on a slow machine is a debt, not a secret.
                run_tests(tally, "-m", "not long", "--tb=short", budget_s=CI_TEST_BUDGET_S, second_try=True)
                run_all([types_of_spark()] if spark_first else [], tally)
                tally.not_run.append("tests marked long: make test-long")
                tally.not_run.append(
                    "conformance, deploy, fuzz, bench: make conformance, make test-deploy, make fuzz, make bench"
                )
            case "conformance":
                own_target(tally, "conformance")
                tally.not_run.append(
                    "official Go and Java clients: they are in no package registry that we could take them from"
                )
            case "javascript":
                own_target(tally, "javascript")
            case "deploy":
                own_target(tally, "deploy")
            case "fuzz":
                fuzz = ("-m", "hypothesis", "-p", "tools.fuzz_profile", "-o", "timeout=0", *rest)
                run_tests(tally, *fuzz, budget_s=LONG_BUDGET_S, each_s=LONG_BUDGET_S)
                fuzz_guided(tally)
            case _:
                print(__doc__, file=sys.stderr)
                return 2
    except KeyboardInterrupt:
        tally.not_run.append("what followed: interrupted")
        tally.print()
        return 130
    finally:
        end_what_is_left()
    return tally.print()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
