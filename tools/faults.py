"""Put small faults into critical code, one at a time, and list those that no near test notices.

    python -m tools.faults [--count 200] [--seed N] [--since REV] [--room NAME ...] [--only TEXT] [--minutes N] [--list]

The committed tree is copied to .tools/mutants; nothing else is changed. Each room of `ROOMS` has its sources and
the folders of tests that must catch its faults. Those tests run once under coverage.py, to learn which test runs which
line, in brokers that they start too. Then `--count` faults are drawn (tools/mutations.py has the kinds), the same for the
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
from tools.gate import MARK, RUN, end_what_is_left
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
# Seconds: for the tests of a folder under coverage, and for the tests of one fault as measured without it. `SLACK_S` is
# added for starting and for a busy machine. A fault that makes a test wait longer counts as caught.
COVER_S: Final = 1500.0
TESTS_S: Final = 60.0
SLACK_S: Final = 90.0
ONE_TEST_S: Final = 60


@dataclass(frozen=True, slots=True)
class Room:
    """Critical code, and the folders or files of tests that must catch its faults."""

    sources: tuple[str, ...]
    tests: tuple[str, ...]


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
        ("client/pydanube/sending", "client/pydanube/receiving/kept_answers.py"), ("tests/client",)
    ),
    "http2": Room(("core/pydanube_core/http2",), ("tests/broker/rpc", "tests/core/test_http2_client.py")),
    "reports": Room(
        (
            "spark_diagnostics/pydanube_spark/reports/lag",
            "spark_diagnostics/pydanube_spark/reports/balance",
        ),
        ("tests/spark",),
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Cover:
    """The passing tests of one folder with their seconds, and the tests by file and line that they run."""

    seconds: Mapping[str, float]
    failed: Sequence[str]
    lines: Mapping[str, Mapping[str, Sequence[str]]]


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
    roots = os.pathsep.join(str(TREE / name) for name in SOURCE_ROOTS)
    return dict(os.environ) | {MARK: RUN, "PYTHONPATH": roots, "OPENBLAS_NUM_THREADS": "1"} | more


def run_tests(
    tests: Iterable[str], variables: Mapping[str, str], *options: str, limit_s: float
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
            sys.executable,
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


def cover_of(folder: str, commit: str) -> Cover:
    """Return the lines that the tests of a folder run. An earlier measurement counts if tests and product are the same."""
    trees = [git("rev-parse", f"{commit}:{path}") for path in (folder, "tests/support", *SOURCE_ROOTS)]
    key = hashlib.sha256("".join(trees).encode()).hexdigest()[:12]
    kept = HOME / f"cover-{folder.replace('/', '-')}-{key}.json"
    if not kept.is_file():
        print(f"== {folder} under coverage", flush=True)
        started = time.monotonic()
        found = measure(folder)
        kept.write_text(json.dumps(asdict(found)))
        print(
            f"   {len(found.seconds)} tests, {len(found.failed)} not passed, {time.monotonic() - started:.0f} s",
            flush=True,
        )
    return Cover(**json.loads(kept.read_text()))


def measure(folder: str) -> Cover:
    data = HOME / "data"
    shutil.rmtree(data, ignore_errors=True)
    data.mkdir(parents=True)
    settings = data / "coveragerc"
    paths = sorted({source for room in ROOMS.values() for source in room.sources})
    included = "".join(f"    {TREE / path}{'' if path.endswith('.py') else '/*'}\n" for path in paths)
    settings.write_text(
        f"[run]\ndata_file = {data / 'lines'}\nparallel = true\nsigterm = true\ndisable_warnings = *\n"
        f"context = ${{{CONTEXT}-}}\ninclude =\n{included}"
    )
    tests = data / "tests.jsonl"
    variables = environment(COVERAGE_PROCESS_START=str(settings), PYDANUBE_MUTANTS_TESTS=str(tests))
    variables["PYTHONPATH"] += os.pathsep + str(TREE / ".mutants")
    run_tests([folder], variables, "-p", "tools.faults_cover", f"--timeout={ONE_TEST_S * 3}", limit_s=COVER_S)
    outcomes = [json.loads(line) for line in tests.read_text().splitlines()] if tests.is_file() else []
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
    return Cover(
        seconds={each["test"]: each["seconds"] for each in outcomes if each["ok"]},
        failed=[each["test"] for each in outcomes if not each["ok"]],
        lines={
            path: {line: sorted(tests) for line, tests in of_file.items()} for path, of_file in lines.items()
        },
    )


def covering(mutation: Mutation, covers: Sequence[Cover], without: set[str]) -> list[tuple[str, float]]:
    """Return the tests that run a fault's statement, quickest first, as many as take `TESTS_S` together."""
    found: dict[str, float] = {}
    for cover in covers:
        of_file = cover.lines.get(mutation.path, {})
        for line in range(mutation.lines[0], mutation.lines[1] + 1):
            for test in of_file.get(str(line), ()):
                if test in cover.seconds and test not in without:
                    found[test] = cover.seconds[test]
    chosen: list[tuple[str, float]] = []
    for test, seconds in sorted(found.items(), key=lambda item: (item[1], item[0])):
        if chosen and sum(each for _, each in chosen) + seconds > TESTS_S:
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


def judge(mutation: Mutation, room: str, covers: Sequence[Cover], run: Run) -> Result:
    """Put the fault in, run its tests, take it out."""
    started = time.monotonic()
    file = TREE / mutation.path
    source, times = file.read_bytes(), (file.stat().st_atime_ns, file.stat().st_mtime_ns)
    report = HOME / "report.jsonl"
    while True:
        chosen = covering(mutation, covers, run.unsteady)
        tests = [test for test, _ in chosen]
        if not tests:
            return Result(name=mutation.name, room=room, verdict="not run")
        report.unlink(missing_ok=True)
        variables = environment(PYTHONDONTWRITEBYTECODE="1", PYDANUBE_GATE_REPORT=str(report))
        options = (
            "-x",
            "-p",
            "tools.gate_report",
            f"--hypothesis-seed={run.seed}",
            f"--timeout={ONE_TEST_S}",
        )
        try:
            file.write_bytes(mutation.applied_to(source))
            limit_s = 3 * sum(seconds for _, seconds in chosen) + SLACK_S
            status, output = run_tests(tests, variables, *options, limit_s=limit_s)
        finally:
            file.write_bytes(source)
            os.utime(file, ns=times)  # so that its bytecode counts again
        took = time.monotonic() - started
        if status == 0:
            return Result(name=mutation.name, room=room, verdict="survived", seconds=took, tests=len(tests))
        by = failed_test(report)
        if status is None or by is None or by in run.steady or is_steady(by, variables, run, output):
            return Result(
                name=mutation.name,
                room=room,
                verdict="caught",
                by=by or ("time" if status is None else "import"),
                seconds=took,
                tests=len(tests),
            )


def failed_test(report: Path) -> str | None:
    """Return the test that failed; None where the run died before one did."""
    lines = report.read_text(encoding="utf-8").splitlines() if report.is_file() else []
    for line in map(json.loads, lines):
        if line.get("outcome") == "failed":
            return str(line["test"])
    return None


def is_steady(test: str, variables: Mapping[str, str], run: Run, output: Path) -> bool:
    """Return whether a test passes without the fault."""
    shutil.copy(output, HOME / "caught.txt")
    status, _ = run_tests([test], variables, f"--timeout={ONE_TEST_S}", limit_s=2 * ONE_TEST_S + SLACK_S)
    (run.steady if status == 0 else run.unsteady).add(test)
    return status == 0


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
    run = Run(HOME / f"{commit[:12]}-{seed}.jsonl", seed, time.monotonic() + options.minutes * 60)
    if run.results_path.is_file():
        for line in run.results_path.read_text(encoding="utf-8").splitlines():
            result = Result(**json.loads(line))
            run.done[result.name] = result
    survivors = run.results_path.with_suffix(".survivors.txt")
    names = [each.name for _, each in chosen]
    try:
        covers: dict[str, list[Cover]] = {}
        for number, (room, mutation) in enumerate(chosen, 1):
            if time.monotonic() > run.deadline:
                print(f"{options.minutes:.0f} minutes are over, the same command goes on", flush=True)
                break
            if mutation.name not in run.done:
                if room not in covers:
                    covers[room] = [cover_of(folder, commit) for folder in ROOMS[room].tests]
                result = judge(mutation, room, covers[room], run)
                run.note(result)
                print(f"{number:4} {result.verdict:9} {result.seconds:5.0f} s  {result.name}", flush=True)
    except KeyboardInterrupt:
        print("interrupted, the same command goes on", flush=True)
    left, total = write_survivors(run, survivors, names)
    print(survivors.read_text(encoding="utf-8"), end="")
    print(f"in {survivors}")
    return 0 if total and left <= SURVIVORS_MAX * total else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
