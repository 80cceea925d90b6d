"""Run the project's checks, each in a process of its own under a time budget, and say what ran and what did not.

    tools/gate.py lint              style, types, import rules, drift of generated code and documents
    tools/gate.py test [ARG...]     the test suite without its long tests; ARGs go to pytest (--durations=30: the slowest)
    tools/gate.py test-long         the whole suite, long tests included
    tools/gate.py ci                test and lint together, nothing twice: what .ci/run runs
    tools/gate.py FOLDER            tests/FOLDER, which is no part of `test` (OWN_TARGETS), long tests included
    tools/gate.py fuzz              the property tests with many more examples, and atheris where there is one

Each folder of tests/ is one pytest process, the longest are several, and short ones of tests/broker share some: one that hangs
costs its own budget and is reported, the others still run. Five steps run side by side (GATE_LANES: another number), the
longest begin first, and each prints when it ends; a step without others prints as it runs. In `ci` a group's failed and
unreached tests get a second try, in a process and with brokers of their own; what passes only then is listed as that. The
last lines name every failed test and check with its error. Exit status: 0 if everything that ran passed and something ran,
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
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path
from typing import BinaryIO, Final

ROOT: Final = Path(__file__).resolve().parent.parent
TESTS: Final = ROOT / "tests"
BIN: Final = Path(sys.executable).parent

# An environment of its own: tools/environment.py says why.
SPARK_PYTHON: Final = ROOT / ".venv-spark" / "bin" / "python"
SPARK_ENVIRONMENT: Final = (str(ROOT / "tools" / "bootstrap"), "spark")
NO_SPARK: Final = "PySpark is not installed (make env-spark)"

# Budgets in seconds. They bound a hang, they are not goals: `make test` should take 15 minutes at most. A loaded machine may take
# three times that, and CI must then report what is wrong, not that it was slow.
LINT_BUDGET_S: Final = 900.0
GROUP_BUDGET_S: Final = 1200.0
# Folders whose subfolders are groups of their own, and those that need more than Python and have a target of their own.
SPLIT_GROUPS: Final = frozenset({"broker"})
OWN_TARGETS: Final = frozenset({"cluster", "conformance", "deploy", "javascript"})
# The folders of SPLIT_GROUPS that are not among FIRST_GROUPS share that many processes: each process imports the broker first,
# and starts servers that fork its brokers, which is three seconds of processor.
SHARED_PROCESSES: Final = 4
# All test groups together; a group that does not fit any more is cut or reported as not run.
TEST_BUDGET_S: Final = 1800.0
CI_TEST_BUDGET_S: Final = 3600.0
LONG_BUDGET_S: Final = 4 * 3600.0
# More failures than this in a folder are no accident, and a second try would only take time.
SECOND_TRY_TESTS: Final = 10
# Seconds that a second try has at least, also if the first one ended just before its budget: pytest's start and a test.
SECOND_TRY_S: Final = 60.0
# Groups of tests side by side, three more than processors: half of the time they wait, for processes to start and for disks.
LANES: Final = min(2, os.cpu_count() or 1) + 3
# The groups that begin first, and in how many processes, each with every n-th file. Spark's begins with its environment and core is
# the fundamental one; then those of minutes, the longest first: begun late, one of them would run alone at the end. The last two
# are short, and bring a loop and servers for their whole session, which would go on into the next folder of a process.
FIRST_GROUPS: Final = {
    "spark": 1, "core": 1, "e2e": 2, "admin": 2, "cli": 2, "crash": 1, "client": 1, "connect": 1, "mcp": 1, "links": 1, "tui": 1,
    "moves": 1, "diagnosis": 1, "relay": 1, "subscription": 1, "home": 1, "house": 1, "storage": 1, "serving": 1, "chain": 1,
    "journal": 1, "cluster": 1, "records": 1, "rpc": 1,
}  # fmt: skip
NOT_IN_TEST: Final = (
    "tests marked long: make test-long",
    f"{', '.join(sorted(OWN_TARGETS))}, fuzz, bench: make help lists them",
)
# In the environment of every process that a step starts, and of what those start: the mark of this run, and a step adds its own.
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
    # (test or check, its error) of what failed for good, and of what passed at its second try only.
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
    #: there a step whose environment cannot be made fails, and failed tests get a second try
    in_ci: bool = False
    #: how many steps run side by side
    lanes: int = LANES

    def add(self, step: Step, *, ok: bool, took_s: float, note: str = "") -> None:
        self.ran_steps += 1
        self.failed_steps += not ok
        verdict = "ok" if ok else "FAILED"
        self.lines.append(f"  {verdict:<7} {took_s:6.1f} s  {step.name}{f': {note}' if note else ''}")

    def leave_out(self, step: Step, why: str, *, failed: bool) -> None:
        """Count a step as not run, and as a failure where that is one."""
        self.not_run.append(f"{step.name}: {why}")
        if failed:
            self.failed_steps += 1
            self.failures.append((step.name, f"not run: {why}"))

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


@contextmanager
def output_of_step(tally: Tally, *, alone: bool) -> Iterator[BinaryIO]:
    """Yield where a step prints: our own output if no other step runs beside it, else a file that is printed at the end."""
    if alone:
        sys.stdout.flush()
        with open(1, "wb", buffering=0, closefd=False) as output:
            yield output
        return
    with tempfile.TemporaryFile() as output:
        yield output
        with tally.lock:
            output.seek(0)
            shutil.copyfileobj(output, sys.stdout.buffer)
            sys.stdout.buffer.flush()


def carry_out(step: Step, tally: Tally, *, alone: bool) -> None:
    """Run one step to its end or to the end of its budget, in CI its failed tests once more."""
    started = time.monotonic()
    with output_of_step(tally, alone=alone) as output:
        if step.prepare and not prepared(step, tally, output):
            return
        status, note = run(step, tally, output)
        outcomes: dict[str, Outcome] = {}
        tries: list[tuple[str, str]] = []
        if step.report is not None:
            outcomes = read_report(step.report)
            # a note: it was stopped, and nothing of its budget is left
            again = open_tests(outcomes) if tally.in_ci and not note else ()
            if again:
                left_s = max(SECOND_TRY_S, step.budget_s - (time.monotonic() - started))
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
        tally.second_tries += tries
        tally.count(outcomes)
        tally.add(step, ok=status == 0, took_s=time.monotonic() - started, note=note)
        if status and step.report is None:
            tally.failures.append((step.name, note or f"ended with status {status}"))


def prepared(step: Step, tally: Tally, output: BinaryIO) -> bool:
    """Make the environment of a step; where that fails, count the step as not run."""
    making = Step(name=f"environment of {step.name}", command=step.prepare, budget_s=step.budget_s)
    status, note = run(making, tally, output)
    if status == 0:
        return True
    with tally.lock:
        if not tally.interrupted:
            tally.leave_out(step, note or step.without, failed=tally.in_ci)
    return False


def open_tests(outcomes: Mapping[str, Outcome]) -> tuple[str, ...]:
    """The tests that deserve a second try: what failed by accident, and what was not reached because of it."""
    failed: Counter[Path] = Counter()
    for test, outcome in outcomes.items():
        if (
            outcome.verdict == "failed"
        ):  # many in a folder, or a file that cannot even be read, are no accident
            failed[folder_of(test)] += 1 if "::" in test else SECOND_TRY_TESTS + 1
    return tuple(
        test
        for test, outcome in outcomes.items()
        if outcome.bad and failed[folder_of(test)] <= SECOND_TRY_TESTS
    )


def folder_of(test: str) -> Path:
    return Path(test.partition("::")[0]).parent


def run(step: Step, tally: Tally, output: BinaryIO) -> tuple[int, str]:
    """Return (exit status, what to say about it). What the step prints goes to `output`."""
    output.write(f"\n== {step.name}\n".encode())
    output.flush()
    mark = f"{RUN}-{uuid.uuid4().hex}"
    with tempfile.TemporaryDirectory(prefix="dg-", ignore_cleanup_errors=True) as scratch:
        # Hundreds of processes load numpy: as a broker does it. The brokers of a group write gigabytes: what its tests leave
        # goes with it. Sockets live there: a short path.
        environment = {"OPENBLAS_NUM_THREADS": "1", **os.environ, "TMPDIR": scratch, MARK: mark}
        if step.report is not None:
            environment["PYDANUBE_GATE_REPORT"] = str(step.report)
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
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            tally.children.add(child)
            print(f"   … {step.name}", flush=True)
        try:
            return child.wait(timeout=step.budget_s), ""
        except subprocess.TimeoutExpired:
            note = f"still running after {step.budget_s:.0f} s, stopped"
            output.write(f"{step.name}: {note}; the tracebacks show where\n".encode())
            output.flush()
            child.send_signal(signal.SIGABRT)
            with suppress(subprocess.TimeoutExpired):
                child.wait(timeout=LAST_WORDS_S)
            return 1, note
        finally:
            stop(child)
            end_what_is_left(mark)
            with tally.lock:
                tally.children.discard(child)


def stop(child: subprocess.Popen[bytes]) -> None:
    """End the step and the processes of its session, which are left if it died."""
    with suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()


def end_what_is_left(mark: str = RUN) -> None:
    """Kill what carries this run's mark, or a step's: brokers have sessions of their own and outlive the tests that started them."""
    begin = f"{MARK}={mark}".encode()
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # ended by now, or another user's
            lines = (process / "environ").read_bytes().split(b"\0")
            if any(line.startswith(begin) for line in lines):
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


def lint_steps(*, in_ci: bool) -> list[Step]:
    """Style, types and drift; in CI also what needs PySpark, which is then installed, but not what tests/house has."""
    python = sys.executable
    ruff = str(BIN / "ruff")
    mypy = (python, "-m", "mypy", "--strict")
    folders = [path for path in sorted(ROOT.glob("*/pydanube*/")) if path.name != "pydanube_spark"]
    sources = [*folders, *sorted(ROOT.glob("tools/*.py")), *sorted(ROOT.glob("evals/*.py"))]
    commands: dict[str, tuple[str, ...]] = {
        "types": (*mypy, *(str(path.relative_to(ROOT)) for path in sources)),
        "ruff check": (ruff, "check", "--quiet", "."),
        "ruff format": (ruff, "format", "--quiet", "--check", "."),
        "texts of tools": (python, "tools/tool_texts.py"),
        "prose": (python, "tools/prose.py", "--limit"),
        "generated code drift": (python, "tools/gen_protos.py", "--check"),
        "generated admin client drift": (python, "tools/gen_admin_client.py", "--check"),
        "generated documents drift": (python, "tools/gen_docs.py", "--check"),
        "generated JavaScript code drift": (python, "tools/gen_javascript_protos.py", "--check"),
        "generated alerts and dashboards drift": (python, "tools/gen_observability.py", "--check"),
    }
    if not in_ci:
        commands["import rules"] = (python, "-m", "pytest", "tests/house/test_import_rules.py")
    steps = [Step(name=name, command=command, budget_s=LINT_BUDGET_S) for name, command in commands.items()]
    if in_ci or SPARK_PYTHON.exists():
        # A cache of its own: "types" may run beside it.
        own = ("--python-executable", str(SPARK_PYTHON), "--cache-dir", ".mypy_cache/spark")
        of_spark = (*mypy, *own, "-p", "pydanube_spark")
        step = Step(name="types of pydanube_spark", command=of_spark, budget_s=LINT_BUDGET_S)
        steps.append(replace(step, prepare=SPARK_ENVIRONMENT, without=NO_SPARK))
    return steps


def groups() -> list[Path]:
    """Return the folders of tests/ that hold tests, those of FIRST_GROUPS first."""
    found: list[Path] = []
    for folder in sorted(TESTS.iterdir()):
        parts = sorted(folder.glob("*/")) if folder.name in SPLIT_GROUPS else [folder]
        found += [part for part in parts if folder.name not in OWN_TARGETS and any(part.rglob("test_*.py"))]
    order = list(FIRST_GROUPS)
    return sorted(found, key=lambda group: order.index(group.name) if group.name in order else len(order))


# `python -m` puts the directory it runs in, ROOT, on the path: plugins are found there as tools.NAME.
PYTEST: Final = (sys.executable, "-m", "pytest", "-p", "tools.gate_report")
# Their import loads Textual, a second of each pytest process, and only the console's tests compare pictures.
WITHOUT_PICTURES: Final = ("-p", "no:textual-snapshot", "-p", "no:syrupy")


def joined(found: Sequence[Path]) -> list[tuple[Path, ...]]:
    """Return the folders of each process, in the order of their first one."""
    short = [each for each in found if each.parent.name in SPLIT_GROUPS and each.name not in FIRST_GROUPS]
    shares = [tuple(short[n::SHARED_PROCESSES]) for n in range(min(SHARED_PROCESSES, len(short)))]
    return [(each,) for each in found if each not in short] + shares


def pytest_steps(reports: Path, *, pytest_arguments: Sequence[str], budget_s: float) -> list[Step]:
    """Return the steps of all groups, in the order in which they begin."""
    steps = []
    for folder, *others in joined(groups()):
        name = str(folder.relative_to(ROOT))
        report = reports / f"{name.replace('/', '-')}.jsonl"
        command = (*PYTEST, *(() if folder.name == "tui" else WITHOUT_PICTURES), *pytest_arguments)
        select = (name, *(str(other.relative_to(ROOT)) for other in others))
        shared = ", ".join((name, *(other.name for other in others)))
        whole = Step(name=shared, command=command, budget_s=budget_s, select=select, report=report)
        if folder.name == "spark":
            with_spark = (str(SPARK_PYTHON), *command[1:])
            whole = replace(whole, command=with_spark, prepare=SPARK_ENVIRONMENT, without=NO_SPARK)
        if (parts := FIRST_GROUPS.get(folder.name, 1)) == 1:
            steps.append(whole)
            continue
        files = [str(path.relative_to(ROOT)) for path in sorted(folder.rglob("test_*.py"))]
        for n in range(parts):
            part = f"{name}, part {n + 1} of {parts}"
            own = report.with_suffix(f".{n + 1}.jsonl")
            steps.append(replace(whole, name=part, select=tuple(files[n::parts]), report=own))
    return steps


def run_all(steps: Iterable[Step], tally: Tally, *, budget_s: float | None = None) -> None:
    """Carry out steps in their order, `tally.lanes` at a time; `budget_s` bounds all."""
    deadline = None if budget_s is None else time.monotonic() + budget_s
    left = deque(steps)
    alone = len(left) == 1

    def work() -> None:
        while left:
            try:
                step = left.popleft()
            except IndexError:  # another lane has taken it
                return
            left_s = step.budget_s if deadline is None else min(step.budget_s, deadline - time.monotonic())
            if left_s > 0:
                carry_out(replace(step, budget_s=left_s), tally, alone=alone)
                continue
            with tally.lock:
                tally.leave_out(step, f"the budget of {budget_s:.0f} s for all tests is used up", failed=True)

    with ThreadPoolExecutor(tally.lanes) as pool:
        working = [pool.submit(work) for _ in range(tally.lanes)]
        try:
            for each in working:
                each.result()
        except BaseException:
            left.clear()
            with tally.lock:
                tally.interrupted = True
                children = list(tally.children)
            for child in children:
                stop(child)
            raise


def run_tests(
    tally: Tally,
    *arguments: str,
    budget_s: float = TEST_BUDGET_S,
    each_s: float = GROUP_BUDGET_S,
    beside: Sequence[Step] = (),
) -> None:
    """Run all groups, in CI with a second try, and `beside` them, after those that begin first, other steps."""
    with tempfile.TemporaryDirectory(prefix="pydanube-reports-") as reports:
        steps = pytest_steps(Path(reports), pytest_arguments=arguments, budget_s=each_s)
        steps[tally.lanes : tally.lanes] = beside
        run_all(steps, tally, budget_s=budget_s)


def own_target(tally: Tally, folder: str) -> None:
    """Run a folder of tests that need more than Python, and list what could not be tried, with its reason."""
    with tempfile.TemporaryDirectory(prefix="pydanube-reports-") as reports:
        report = Path(reports) / f"{folder}.jsonl"
        name = f"tests/{folder}"
        step = Step(name=name, command=PYTEST, budget_s=LONG_BUDGET_S, select=(name,), report=report)
        run_all([step], tally)
        tally.not_run += [
            f"{test}: {outcome.why}"
            for test, outcome in read_report(report).items()
            if outcome.verdict in ("skipped", "not reached")
        ]


def fuzz_guided(tally: Tally) -> None:
    """Fuzz guided by coverage, where there is a fuzzer for this Python."""
    if find_spec("atheris") is None:
        tally.not_run.append(
            "the HTTP/2 connection under atheris, which is not made for this Python and system"
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
    try:
        tally = Tally(lanes=max(1, int(os.environ.get("GATE_LANES") or LANES)))
    except ValueError:
        print(f"GATE_LANES is {os.environ['GATE_LANES']!r}. Set it to a number of steps.", file=sys.stderr)
        return 2
    keep_bytecode()
    # `timeout` sends SIGTERM; like Ctrl-C it must take the running check along.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    word, rest = (arguments[0], list(arguments[1:])) if arguments else ("", [])
    try:
        match word:
            case "lint":
                run_all(lint_steps(in_ci=False), tally)
                if not SPARK_PYTHON.exists():
                    tally.not_run.append(f"types of pydanube_spark: {NO_SPARK}")
            case "test":
                run_tests(tally, "-m", "not long", *rest)
                tally.not_run += NOT_IN_TEST
            case "test-long":
                run_tests(tally, *rest, budget_s=LONG_BUDGET_S, each_s=LONG_BUDGET_S)
            case "ci":
                tally.in_ci = True
                steps = lint_steps(in_ci=True)
                run_tests(tally, "-m", "not long", "--tb=short", budget_s=CI_TEST_BUDGET_S, beside=steps)
                tally.not_run += NOT_IN_TEST
            case _ if word in OWN_TARGETS:
                own_target(tally, word)
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
