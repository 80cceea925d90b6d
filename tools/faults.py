"""Put small faults into critical code, one at a time, and list those that no near test notices.

    python -m tools.faults [--count 200] [--seed N] [--since REV] [--room NAME ...] [--only TEXT] [--minutes N] [--list]

The committed tree is copied to .tools/mutants; nothing else is changed. Each room of `ROOMS` has its sources and
the folders of tests that must catch its faults. A process per room collects them once and runs the chosen ones in forks
(tools/faults_server.py). A file of tests runs once under coverage.py, to learn which test runs which line, in brokers that
it starts too: first the files that name something of the faulty module, the others only if the fault survives those. Then `--count` faults are drawn (tools/mutations.py has the kinds), the same for the
same commit and seed, as many of each room: of lines changed since `--since`, or of all. For each fault the tests run that
execute its statement, the quickest first, until one fails. A test that catches a fault for the first time in a run is
repeated without the fault: one that fails then too is unsteady, is listed, and catches nothing.

A fault that survives is a test to write or a line to remove. One that cannot change a promise stands in
tools/faults_equivalent.toml with the reason. An interrupted run goes on where it was. The results are beside the copy:

    <commit>-<seed>.jsonl          a line per fault: name, verdict, the test that failed, seconds
    <commit>-<seed>.survivors.txt  the faults that survived, by room, and those on lines that no near test runs

mutmut and cosmic-ray were looked at for this. cosmic-ray has one test command for all modules and no map from a line to
its tests. mutmut makes trampolines of functions. That hides the signatures by which operations are declared.

Exit status: 0 if at most 5 % survived, 1 if more did, 2 for bad arguments.
"""

from __future__ import annotations

import argparse
import ast
import datetime
import hashlib
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Final

import coverage

from tools.faults_cover import CONTEXT
from tools.faults_process import TestProcess
from tools.gate import MARK, RUN, SPARK_PYTHON, end_what_is_left
from tools.mutations import Mutation, mutations_of

ROOT: Final = Path(__file__).resolve().parent.parent
HOME: Final = ROOT / ".tools" / "mutants"
TREE: Final = HOME / "tree"
EQUIVALENT: Final = ROOT / "tools" / "faults_equivalent.toml"
SOURCE_ROOTS: Final = (
    "core",
    "storage",
    "broker",
    "client",
    "admin_core",
    "mcp_server",
    "tui",
    "cli",
    "connect",
    "spark_diagnostics",
)
SURVIVORS_MAX: Final = 0.05
# Seconds: for the tests of a file under coverage, and for the tests of one fault as measured without it. `SLACK_S` is
# added for starting and for a busy machine. A fault that makes a test wait longer counts as caught.
COVER_S: Final = 900.0
TESTS_S: Final = 60.0
SLACK_S: Final = 90.0
ONE_TEST_S: Final = 60


@dataclass(frozen=True, slots=True)
class Room:
    """Critical code, and the folders or files of tests that must catch its faults."""

    sources: tuple[str, ...]
    tests: tuple[str, ...]
    python: Path = Path(sys.executable)


def _of_broker(name: str, *more: str) -> Room:
    return Room((f"broker/pydanube_broker/{name}",), (f"tests/broker/{name}", *more))


ROOMS: Final[Mapping[str, Room]] = {
    "journal": _of_broker("journal"),
    "topics": _of_broker("topics", "tests/broker/delivery"),
    "subscription": _of_broker("subscription"),
    "tier": _of_broker("tier"),
    "cluster": _of_broker("cluster"),
    "serving": _of_broker("serving"),
    "security": Room(
        ("broker/pydanube_broker/security", "core/pydanube_core/security"),
        ("tests/broker/security", "tests/core/security"),
    ),
    "engine": Room(("admin_core/pydanube_admin/engine",), ("tests/admin",)),
    "fencing": Room(("mcp_server/pydanube_mcp/fencing.py",), ("tests/mcp",)),
    "lanes": Room(
        ("client/pydanube/sending", "client/pydanube/receiving/repeated_answers.py"), ("tests/client",)
    ),
    "http2": Room(("core/pydanube_core/http2",), ("tests/broker/rpc", "tests/core/test_http2_client.py")),
    "reports": Room(
        (
            "spark_diagnostics/pydanube_spark/reports/lag",
            "spark_diagnostics/pydanube_spark/reports/balance",
        ),
        ("tests/spark",),
        SPARK_PYTHON,
    ),
}


MEASURED: Final = tuple(source for room in ROOMS.values() for source in room.sources)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cover:
    """The passing tests of one file with their seconds, and the tests by file and line that they run."""

    seconds: Mapping[str, float]
    failed: Sequence[str]
    lines: Mapping[str, Mapping[str, Sequence[str]]]
    sources: Mapping[str, str]  # ids of the contents that were measured, by file


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What became of one fault."""

    name: str
    room: str
    verdict: str  # caught, survived, "not run" (no near test runs the line)
    by: str | None = None
    seconds: float = 0.0
    tests: int = 0


@dataclass(slots=True)
class Run:
    """One run: where it writes, and which tests have shown to be steady or not."""

    results_path: Path
    seed: int
    deadline: float
    tests_s: float = TESTS_S
    done: dict[str, Result] = field(default_factory=dict)
    steady: set[str] = field(default_factory=set)
    unsteady: set[str] = field(default_factory=set)

    def note(self, result: Result) -> None:
        self.done[result.name] = result
        with self.results_path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(asdict(result), ensure_ascii=False) + "\n")


def git(*words: str) -> str:
    return subprocess.run(("git", *words), cwd=ROOT, check=True, capture_output=True, text=True).stdout


def copy_tree(commit: str) -> None:
    """Make the scratch copy the tree of this commit, also after a run that died with a fault in it."""
    mark = HOME / "commit"
    if not (mark.is_file() and mark.read_text() == commit and TREE.is_dir()):
        shutil.rmtree(TREE, ignore_errors=True)
    TREE.mkdir(parents=True, exist_ok=True)
    archive = subprocess.run(("git", "archive", commit), cwd=ROOT, check=True, capture_output=True).stdout
    subprocess.run(("tar", "-x", "-C", str(TREE)), input=archive, check=True)
    if not (TREE / ".venv").exists():
        (TREE / ".venv").symlink_to(ROOT / ".venv")
    start = TREE / ".mutants"
    start.mkdir(exist_ok=True)
    (start / "sitecustomize.py").write_text("import coverage\n\ncoverage.process_startup()\n")
    mark.write_text(commit)


def environment(**more: str) -> dict[str, str]:
    """Return the environment of a test run in the copy: its sources come before the installed ones."""
    return plain_environment() | {MARK: RUN} | more


def plain_environment() -> dict[str, str]:
    """Return that of a test process, which outlives the runs that it forks and so has no mark of theirs."""
    roots = os.pathsep.join(str(TREE / name) for name in SOURCE_ROOTS)
    return dict(os.environ) | {"PYTHONPATH": roots, "OPENBLAS_NUM_THREADS": "1"}


def run_tests(
    tests: Iterable[str],
    variables: Mapping[str, str],
    *options: str,
    limit_s: float,
    python: Path = Path(sys.executable),
) -> tuple[int | None, Path]:
    """Run pytest in the copy. Return its status, None after `limit_s`, and the file with its output.

    Processes that the tests started end with them.
    """
    output = HOME / "output.txt"
    with (
        tempfile.TemporaryDirectory(prefix="dm-", ignore_cleanup_errors=True) as scratch,
        output.open("wb") as file,
    ):
        words = (
            str(python),
            "-m",
            "pytest",
            "-p",
            "no:cacheprovider",
            "-m",
            "not long",
            "--tb=short",
            *options,
            *tests,
        )
        child = subprocess.Popen(
            words,
            cwd=TREE,
            env={**variables, "TMPDIR": scratch},
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            return child.wait(timeout=limit_s), output
        except subprocess.TimeoutExpired:
            return None, output
        finally:
            if child.poll() is None:
                os.killpg(child.pid, signal.SIGKILL)
                child.wait()
            end_what_is_left()


# -- which test runs which line ------------------------------------------------------------------------------


class Bench:
    """The tests of one room: their process, and what each of their files runs. Close it at the end."""

    def __init__(self, room: Room, commit: str, seed: int) -> None:
        shared = ("tests/conftest.py", "tests/support")
        listed = git("ls-tree", "-r", commit, "--", *MEASURED, *room.tests, *shared).splitlines()
        #: Ids of contents by path
        self._files = {path: facts.split()[2] for facts, path in (line.split("\t") for line in listed)}
        self._sources = {path: each for path, each in self._files.items() if path.startswith(MEASURED)}
        helpers = [
            each
            for path, each in self._files.items()
            if path not in self._sources and not Path(path).name.startswith("test_")
        ]
        self._helpers = hashlib.sha256("".join(helpers).encode()).hexdigest()[:12]
        self._covers: dict[str, Cover] = {}
        self._texts: dict[str, tuple[str, frozenset[str]]] = {}
        options = (f"--hypothesis-seed={seed}", f"--timeout={ONE_TEST_S * 2}")
        output = HOME / f"output-{room.tests[0].replace('/', '-')}.txt"
        self.python = room.python
        self.process = TestProcess(
            TREE, room.tests, output, *options, environment=plain_environment(), python=room.python
        )
        self.files: dict[str, list[str]] = {}
        for test in self.process.tests:
            self.files.setdefault(test.partition("::")[0], []).append(test)

    def near(self, path: str) -> list[str]:
        """Return the test files that import the module, are named like it, or name a class or function of it.

        Those with most names come first. Without any, those in whose path the package is.
        """
        tree = ast.parse((TREE / path).read_bytes())
        kinds = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
        names = {node.name for node in tree.body if isinstance(node, kinds)}
        module = re.compile(rf"\b{Path(path).parent.name}(\.| import .*\b){Path(path).stem}\b")
        found: list[tuple[int, str]] = []
        for file in self.files:
            if file not in self._texts:
                text = (TREE / file).read_text(encoding="utf-8")
                self._texts[file] = text, frozenset(re.findall(r"\w+", text))
            text, words = self._texts[file]
            named_so = Path(path).stem in Path(file).stem
            if count := len(names & words) + (module.search(text) is not None) + named_so:
                found.append((-count, file))
        package = Path(path).parent.name
        return [file for _, file in sorted(found)] or [file for file in self.files if package in file]

    def stages(self, path: str) -> Iterator[list[Cover]]:
        """Yield what to run, in turn: files that are measured already, then one after the other, near files first.

        So that a fault which the first tests find costs no measurement of all others. The last are near files that were
        measured with other sources: what has changed elsewhere may lead their tests here.
        """
        near = self.near(path)
        left = [*near, *(file for file in self.files if file not in near)]
        known = [cover for file in left if (cover := self._measured(file, path)) is not None]
        yield known
        for file in left:
            if self._measured(file, path) is None:
                yield [self._measure(file)]
        for file in near:
            if self._covers[file].sources != self._sources:
                yield [self._measure(file)]

    def _kept(self, file: str) -> Path:
        return HOME / "covers" / f"{file.replace('/', '-')}-{self._files[file][:12]}-{self._helpers}.json"

    def _measured(self, file: str, path: str) -> Cover | None:
        """Return the lines that the tests of a file run. An earlier measurement counts while it and the module are the same."""
        if file not in self._covers and (kept := self._kept(file)).is_file():
            self._covers[file] = Cover(**json.loads(kept.read_text()))
        found = self._covers.get(file)
        return found if found is not None and found.sources.get(path) == self._sources[path] else None

    def _measure(self, file: str) -> Cover:
        data = HOME / "data"
        shutil.rmtree(data, ignore_errors=True)
        data.mkdir(parents=True)
        settings, tests, report = data / "coveragerc", data / "tests.jsonl", HOME / "report.jsonl"
        included = "".join(f"    {TREE / path}{'' if path.endswith('.py') else '/*'}\n" for path in MEASURED)
        settings.write_text(
            f"[run]\ndata_file = {data / 'lines'}\nparallel = true\nsigterm = true\ndisable_warnings = *\n"
            f"context = ${{{CONTEXT}-}}\ninclude =\n{included}"
        )
        variables = environment(COVERAGE_PROCESS_START=str(settings))
        variables["PYTHONPATH"] += os.pathsep + str(TREE / ".mutants")
        status = self.process.run(
            self.files[file],
            report,
            environment=variables,
            limit_s=COVER_S,
            cover={"settings": str(settings), "tests": str(tests)},
        )
        outcomes = [json.loads(line) for line in tests.read_text().splitlines()] if tests.is_file() else []
        found = self._covers[file] = Cover(
            seconds={each["test"]: each["seconds"] for each in outcomes if each["ok"]},
            failed=[each["test"] for each in outcomes if not each["ok"]],
            lines=lines_by_test(data),
            sources=self._sources,
        )
        whole = {each["test"] for each in outcomes} >= set(self.files[file])
        if status == "ended" and whole and failed_test(report) is None:
            self._kept(file).parent.mkdir(exist_ok=True)
            self._kept(file).write_text(json.dumps(asdict(found)))
        return found


def lines_by_test(data: Path) -> dict[str, dict[str, list[str]]]:
    """Return the tests by file and line from what coverage.py wrote for each process."""
    lines: dict[str, dict[str, set[str]]] = {}
    for part in data.glob("lines.*"):
        recorded = coverage.CoverageData(str(part))
        try:
            recorded.read()
            for file in recorded.measured_files():
                of_file = lines.setdefault(str(Path(file).relative_to(TREE)), {})
                for line, contexts in recorded.contexts_by_lineno(file).items():
                    of_file.setdefault(str(line), set()).update(filter(None, contexts))
        except coverage.CoverageException:  # its process was killed while it wrote
            continue
        finally:
            recorded.close()
    return {path: {line: sorted(tests) for line, tests in each.items()} for path, each in lines.items()}


def covering(
    mutation: Mutation,
    covers: Sequence[Cover],
    without: set[str],
    *,
    most_s: float = TESTS_S,
) -> list[tuple[str, float]]:
    """Return the tests that run a fault's statement, quickest first, as many as take `most_s` seconds together."""
    found: dict[str, float] = {}
    for cover in covers:
        of_file = cover.lines.get(mutation.path, {})
        for line in range(mutation.lines[0], mutation.lines[1] + 1):
            for test in of_file.get(str(line), ()):
                if test in cover.seconds and test not in without:
                    found[test] = cover.seconds[test]
    chosen: list[tuple[str, float]] = []
    for test, seconds in sorted(found.items(), key=lambda item: (item[1], item[0])):
        if chosen and sum(each for _, each in chosen) + seconds > most_s:
            break
        chosen.append((test, seconds))
    return chosen


# -- faults --------------------------------------------------------------------------------------------------


def changed_lines(since: str, commit: str) -> dict[str, set[int]]:
    """Return the lines by file that a diff adds or replaces."""
    found: dict[str, set[int]] = {}
    path = ""
    for line in git("diff", "-U0", "--no-color", since, commit, "--", *SOURCE_ROOTS).splitlines():
        if line.startswith("+++ b/"):
            path = line[6:]
        elif match := re.match(r"@@ -\S+ \+(\d+)(?:,(\d+))? @@", line):
            first, count = int(match[1]), int(match[2] or 1)
            found.setdefault(path, set()).update(range(first, first + count))
    return found


def equivalents() -> dict[str, str]:
    """Return the faults that change no promise, with the reason."""
    if not EQUIVALENT.is_file():
        return {}
    entries = tomllib.loads(EQUIVALENT.read_text(encoding="utf-8")).get("equivalent", [])
    return {entry["name"]: entry["reason"] for entry in entries}


def faults_of(room: Room, changed: Mapping[str, set[int]] | None) -> Iterator[Mutation]:
    for source in room.sources:
        path = TREE / source
        for file in sorted(path.rglob("*.py")) if path.is_dir() else [path]:
            name = str(file.relative_to(TREE))
            for mutation in mutations_of(name, file.read_bytes()):
                if changed is None or mutation.line in changed.get(name, ()):
                    yield mutation


def draw(by_room: Mapping[str, list[Mutation]], seed: int) -> Iterator[tuple[str, Mutation]]:
    """Yield the faults in the order of this seed, one of each room in turn, so that a larger count only adds to a smaller one."""
    left = {}
    for name, mutations in by_room.items():
        left[name] = sorted(mutations, key=lambda each: each.name)
        random.Random(f"{seed} {name}").shuffle(left[name])
    while any(left.values()):
        for name, mutations in left.items():
            if mutations:
                yield name, mutations.pop()


def judge(mutation: Mutation, room: str, bench: Bench, run: Run) -> Result:
    """Put the fault in, run its tests, take it out."""
    started = time.monotonic()
    ran: set[str] = set()
    for covers in bench.stages(mutation.path):
        while chosen := covering(mutation, covers, run.unsteady | ran, most_s=run.tests_s):
            tests = [test for test, _ in chosen]
            limit_s = 3 * sum(seconds for _, seconds in chosen) + SLACK_S
            status, by = run_with(mutation, tests, bench, run, limit_s)
            if by is None and status != "time":
                ran.update(tests)
                break
            if by is None or by in run.steady or is_steady(by, bench, run):
                took = time.monotonic() - started
                return Result(
                    name=mutation.name,
                    room=room,
                    verdict="caught",
                    by=by or "time",
                    seconds=took,
                    tests=len(tests),
                )
    verdict = "survived" if ran else "not run"
    return Result(
        name=mutation.name, room=room, verdict=verdict, seconds=time.monotonic() - started, tests=len(ran)
    )


def run_with(
    mutation: Mutation, tests: Sequence[str], bench: Bench, run: Run, limit_s: float
) -> tuple[str, str | None]:
    """Run tests with a fault. Return how the run ended, and the test that failed."""
    file = TREE / mutation.path
    source, times = file.read_bytes(), (file.stat().st_atime_ns, file.stat().st_mtime_ns)
    report = HOME / "report.jsonl"
    variables = environment(PYTHONDONTWRITEBYTECODE="1")
    try:
        file.write_bytes(mutation.applied_to(source))
        fault = (file, mutation.line)
        status = bench.process.run(tests, report, environment=variables, limit_s=limit_s, fault=fault)
        if status == "not replaced":  # a process that imports the file
            variables["PYDANUBE_GATE_REPORT"] = str(report)
            report.unlink(missing_ok=True)
            options = (
                "-x",
                "-p",
                "tools.gate_report",
                f"--hypothesis-seed={run.seed}",
                f"--timeout={ONE_TEST_S}",
            )
            ended, _ = run_tests(tests, variables, *options, python=bench.python, limit_s=limit_s)
            failed = failed_test(report)
            status = "time" if ended is None or (ended and failed is None) else "ended"
    finally:
        file.write_bytes(source)
        os.utime(file, ns=times)  # so that its bytecode counts again
    return status, failed_test(report)


def failed_test(report: Path) -> str | None:
    """Return the test that failed; None where the run died before one did."""
    lines = report.read_text(encoding="utf-8").splitlines() if report.is_file() else []
    for line in map(json.loads, lines):
        if line.get("outcome") == "failed":
            return str(line["test"])
    return None


def is_steady(test: str, bench: Bench, run: Run) -> bool:
    """Return whether a test passes without the fault."""
    report = HOME / "report.jsonl"
    shutil.copy(report, HOME / "caught.jsonl")
    limit_s = 2 * ONE_TEST_S + SLACK_S
    status = bench.process.run([test], report, environment=environment(), limit_s=limit_s)
    passed = status == "ended" and report.is_file() and failed_test(report) is None
    (run.steady if passed else run.unsteady).add(test)
    return passed


def write_survivors(run: Run, path: Path, names: Sequence[str]) -> tuple[int, int]:
    """Write the survivors by room. Return how many survived, of how many faults."""
    known = equivalents()
    results = [run.done[name] for name in names if name in run.done and name not in known]
    survivors = [each for each in results if each.verdict != "caught"]
    rooms = Counter(each.room for each in results)
    lines = [f"{len(survivors)} of {len(results)} faults survived; seed {run.seed}"]
    for room, count in rooms.items():
        found = [each for each in survivors if each.room == room]
        lines.append(f"\n{room}: {len(found)} of {count}")
        lines += [
            f"  {each.name}" + ("   (no near test runs it)" if each.verdict == "not run" else "")
            for each in found
        ]
    if run.unsteady:
        lines += ["\nunsteady tests", *(f"  {test}" for test in sorted(run.unsteady))]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return len(survivors), len(results)


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        description="Put faults into critical code and list those that no near test notices."
    )
    parser.add_argument("--count", type=int, default=200, help="how many faults (200)")
    parser.add_argument("--seed", type=int, default=None, help="which ones (default: the date)")
    parser.add_argument("--since", help="only lines changed since this revision")
    parser.add_argument(
        "--room", action="append", choices=sorted(ROOMS), help="only this room; may be repeated"
    )
    parser.add_argument("--only", help="only faults whose name contains this text")
    parser.add_argument("--again", type=Path, help="only the faults named in this file of survivors")
    parser.add_argument("--minutes", type=float, default=240.0, help="stop after this time (240)")
    parser.add_argument(
        "--tests-s", type=float, default=TESTS_S,
        help=f"seconds of tests per fault ({TESTS_S:.0f}); more on a busy machine, where all take longer",
    )  # fmt: skip
    parser.add_argument("--list", action="store_true", help="print the faults, without running anything")
    options = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    commit = git("rev-parse", "HEAD").strip()
    seed = (
        options.seed
        if options.seed is not None
        else int(datetime.datetime.now(datetime.UTC).strftime("%Y%m%d"))
    )
    HOME.mkdir(parents=True, exist_ok=True)
    copy_tree(commit)
    changed = None if options.since is None else changed_lines(options.since, commit)
    rooms = {name: room for name, room in ROOMS.items() if not options.room or name in options.room}
    for name in [name for name, room in rooms.items() if not room.python.exists()]:
        print(f"{name}: not run, because its tests need {rooms.pop(name).python}", flush=True)
    known = equivalents()
    by_room = {
        name: [each for each in faults_of(room, changed) if each.name not in known]
        for name, room in rooms.items()
    }
    drawn = draw(by_room, seed)
    if options.only is not None:
        drawn = ((room, each) for room, each in drawn if options.only in each.name)
    if options.again is not None:
        wanted = {
            line.strip().partition("   (")[0]
            for line in options.again.read_text(encoding="utf-8").splitlines()
        }
        drawn = ((room, each) for room, each in drawn if each.name in wanted)
    chosen = [pair for pair, _ in zip(drawn, range(options.count), strict=False)]
    if options.list:
        print(*(each.name for _, each in chosen), sep="\n")
        return 0
    deadline = time.monotonic() + options.minutes * 60
    run = Run(HOME / f"{commit[:12]}-{seed}.jsonl", seed, deadline, options.tests_s)
    if run.results_path.is_file():
        for line in run.results_path.read_text(encoding="utf-8").splitlines():
            result = Result(**json.loads(line))
            run.done[result.name] = result
    survivors = run.results_path.with_suffix(".survivors.txt")
    names = [each.name for _, each in chosen]
    benches: dict[str, Bench] = {}
    try:
        for number, (room, mutation) in enumerate(chosen, 1):
            if time.monotonic() > run.deadline:
                print(f"{options.minutes:.0f} minutes are over, the same command goes on", flush=True)
                break
            if mutation.name not in run.done:
                if room not in benches:
                    benches[room] = Bench(ROOMS[room], commit, seed)
                result = judge(mutation, room, benches[room], run)
                run.note(result)
                print(f"{number:4} {result.verdict:9} {result.seconds:5.0f} s  {result.name}", flush=True)
    except KeyboardInterrupt:
        print("interrupted, the same command goes on", flush=True)
    finally:
        for bench in benches.values():
            bench.process.close()
    left, total = write_survivors(run, survivors, names)
    print(survivors.read_text(encoding="utf-8"), end="")
    print(f"in {survivors}")
    return 0 if total and left <= SURVIVORS_MAX * total else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
