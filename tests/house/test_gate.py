"""The gate that CI trusts: a hang costs its budget only, a crash counts, and nothing is reported that did not run."""

from __future__ import annotations

import dataclasses
import importlib.util
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest


@pytest.fixture(scope="module")
def gate(root: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location("gate", root / "tools" / "gate.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["gate"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def python(program: str) -> tuple[str, ...]:
    return (sys.executable, "-c", program)


def runs(process: Path) -> bool:
    try:
        return ") Z " not in (process / "stat").read_text(encoding="utf-8")
    except OSError:
        return False


def test_hanging_step_is_stopped_with_what_it_started_and_the_next_runs(
    gate: ModuleType, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    ready = tmp_path / "ready"
    hang = python(
        "import faulthandler, pathlib, subprocess, sys, time; faulthandler.enable();"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)']);"
        f"pathlib.Path({str(ready)!r}).write_text(str(child.pid)); time.sleep(600)"
    )
    tally = gate.Tally()
    started = time.monotonic()
    gate.run_all(
        [
            gate.Step(name="hang", command=hang, budget_s=3.0),
            gate.Step(name="next", command=python("print('went on')"), budget_s=60.0),
        ],
        tally,
    )
    assert time.monotonic() - started < 60
    assert tally.print() == 1
    out = capfd.readouterr().out
    assert "still running after 3 s" in out
    assert "went on" in out
    assert "most recent call first" in out, "faulthandler shows where it hung"
    grandchild = Path("/proc") / ready.read_text(encoding="utf-8")
    # A killed process runs until it is scheduled again. Then it is gone, or a zombie that init has not reaped yet.
    until = time.monotonic() + 60
    while Path("/proc/self").exists() and runs(grandchild):
        assert time.monotonic() < until, "what the step started was not stopped"
        time.sleep(0.01)


def test_what_a_step_leaves_in_its_temporary_folder_goes_with_it(
    gate: ModuleType, capfd: pytest.CaptureFixture[str]
) -> None:
    leaves = python(
        "import os, tempfile; made = tempfile.mkdtemp(); open(os.path.join(made, 'big'), 'wb').write(bytes(10));"
        "print('made', made, flush=True); os._exit(9)"
    )
    tally = gate.Tally()
    gate.run_all([gate.Step(name="killed", command=leaves, budget_s=60.0)], tally)
    made = Path(capfd.readouterr().out.split("made ")[1].split()[0])
    assert made.parent.name.startswith("dg-")
    assert not made.parent.exists()


def test_budget_of_all_tests_reports_what_it_left_out(
    gate: ModuleType, capfd: pytest.CaptureFixture[str]
) -> None:
    tally = gate.Tally()
    gate.run_all([gate.Step(name="late", command=python("pass"), budget_s=60.0)], tally, budget_s=0.0)
    gate.run_all([gate.Step(name="fine", command=python("pass"), budget_s=60.0)], tally)
    assert tally.print() == 1, "a check that was left out is not a pass"
    assert "late: the budget" in capfd.readouterr().out


def test_steps_side_by_side_start_in_their_order_and_print_one_after_the_other(
    gate: ModuleType, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    def meets(me: str, other: str) -> tuple[str, ...]:
        return python(
            f"import pathlib, time; here = pathlib.Path({str(tmp_path)!r}); print('{me} in', flush=True);"
            f"(here / '{me}').touch()\nwhile not (here / '{other}').exists(): time.sleep(0.01)\nprint('{me} out')"
        )

    tally = gate.Tally(lanes=2)
    steps = [
        gate.Step(name="first", command=meets("first", "second"), budget_s=60.0),
        gate.Step(name="second", command=meets("second", "first"), budget_s=60.0),
        gate.Step(name="third", command=python("print('third')"), budget_s=60.0),
    ]
    gate.run_all(steps, tally)
    assert tally.print() == 0, "the first two ran together, else neither had ended"
    out = capfd.readouterr().out
    assert "first in\nfirst out\n" in out
    assert "second in\nsecond out\n" in out
    assert tally.ran_steps == 3


def test_a_long_group_does_not_begin_when_the_others_are_over(gate: ModuleType) -> None:
    names = [group.name for group in gate.groups()]
    wanted = list(gate.FIRST_GROUPS)
    assert names[: len(wanted)] == wanted, "each is there, in this order"


def test_a_step_whose_environment_cannot_be_made_is_not_run_and_fails_where_everything_is_wanted(
    gate: ModuleType, capfd: pytest.CaptureFixture[str]
) -> None:
    step = gate.Step(
        name="tests/spark",
        command=python("print('ran')"),
        budget_s=60.0,
        prepare=python("raise SystemExit('no network')"),
        without="PySpark is not installed",
    )
    after = gate.Step(name="after", command=python("print('went on')"), budget_s=60.0)
    for in_ci in (False, True):
        tally = gate.Tally(in_ci=in_ci)
        gate.run_all([step, after], tally)
        assert tally.print() == int(in_ci)
        out = capfd.readouterr().out
        assert "tests/spark: PySpark is not installed" in out
        assert ("== failed\n  tests/spark\n      not run: PySpark is not installed" in out) == in_ci
        assert "went on" in out
        assert "\nran\n" not in out


def test_a_step_without_others_prints_as_it_runs(gate: ModuleType, capfd: pytest.CaptureFixture[str]) -> None:
    step = gate.Step(name="a", command=python("import os; print('into', os.fstat(1).st_ino)"), budget_s=60.0)
    ours = f"into {os.fstat(1).st_ino}\n"
    gate.run_all([step], gate.Tally())
    assert ours in capfd.readouterr().out
    gate.run_all([step, step], gate.Tally())
    out = capfd.readouterr().out
    assert out.count("into ") == 2
    assert ours not in out, "of two, each has a file until it ends"


def test_the_end_names_a_failed_check_before_the_counts(
    gate: ModuleType, capfd: pytest.CaptureFixture[str]
) -> None:
    tally = gate.Tally(passed=5000)
    good = gate.Step(name="prose", command=python("pass"), budget_s=60.0)
    bad = gate.Step(name="ruff check", command=python("raise SystemExit(3)"), budget_s=60.0)
    gate.run_all([good, bad], tally)
    assert tally.print() == 1
    end = "== failed\n  ruff check\n      ended with status 3\n\n5000 passed, 0 failed, 0 skipped\n"
    assert capfd.readouterr().out.endswith(end)


def test_runs_of_mypy_side_by_side_have_caches_of_their_own(gate: ModuleType) -> None:
    runs = [step.command for step in gate.lint_steps(in_ci=True) if "mypy" in step.command]
    assert len(runs) == 2
    assert sum("--cache-dir" in command for command in runs) == 1


def test_an_interruption_takes_all_lanes_along(
    gate: ModuleType, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    def interrupt(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    former = signal.signal(signal.SIGUSR1, interrupt)
    program = f"import os, pathlib, time; print('so far', flush=True); pathlib.Path({str(tmp_path)!r}, str(os.getpid())).touch(); time.sleep(600)"
    steps = [gate.Step(name=name, command=python(program), budget_s=60.0) for name in "abc"]

    def watch() -> None:
        while len(list(tmp_path.iterdir())) < 2:
            time.sleep(0.01)
        signal.pthread_kill(threading.main_thread().ident, signal.SIGUSR1)

    watcher = threading.Thread(target=watch)
    watcher.start()
    tally = gate.Tally(lanes=2)
    try:
        with pytest.raises(KeyboardInterrupt):
            gate.run_all(steps, tally)
    finally:
        watcher.join()
        signal.signal(signal.SIGUSR1, former)
    assert len(list(tmp_path.iterdir())) == 2, "the third was not begun"
    assert not tally.children
    assert not tally.lines
    assert capfd.readouterr().out.count("so far\n") == 2, "what they had printed is shown"


@pytest.fixture
def elsewhere(
    gate: ModuleType, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[[dict[str, str]], list[Any]]:
    """Make a folder the gate's root, and one pytest step a source, as the gate makes them of the folders of tests/."""
    monkeypatch.setattr(gate, "ROOT", tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(root))  # `tools`
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")  # what others bring takes half of a start
    return lambda sources: pytest_steps(gate, tmp_path, sources)


def pytest_steps(gate: ModuleType, folder: Path, sources: dict[str, str]) -> list[Any]:
    (folder / "pytest.ini").write_text("[pytest]\nmarkers = long: x\n", encoding="utf-8")
    steps = []
    for name, source in sources.items():
        path = folder / f"test_{name}.py"
        path.write_text(source, encoding="utf-8")
        command = (*gate.PYTEST, "-q", "-m", "not long", "-p", "no:cacheprovider")
        steps.append(
            gate.Step(
                name=name,
                command=command,
                select=(path.name,),
                budget_s=60.0,
                report=folder / f"{name}.jsonl",
            )
        )
    return steps


def test_pytest_counts_are_added_up_and_a_crash_is_a_failure(
    gate: ModuleType,
    elsewhere: Callable[[dict[str, str]], list[Any]],
    capfd: pytest.CaptureFixture[str],
) -> None:
    sources = {
        "good": "import pytest\ndef test_a(): pass\ndef test_b(): pytest.skip('x')\n",
        "bad": "def test_c(): assert 1 == 2, 'so it is'\ndef test_d(): pass\n",
        "dead": "import os\ndef test_d(): pass\ndef test_e(): os._exit(0)\ndef test_f(): pass\n",
        "unborn": "import os\nos._exit(3)\n",
        "unreadable": "def test_g( pass\n",
        "teardown": "import pytest\n@pytest.fixture\ndef f():\n    yield\n    assert False, 'late'\ndef test_h(f): pass\n",
        "empty": "import pytest\npytestmark = pytest.mark.long\ndef test_f(): pass\n",
    }
    tally = gate.Tally()
    gate.run_all(elsewhere(sources), tally)
    assert (tally.passed, tally.failed, tally.skipped, tally.failed_steps) == (3, 5, 1, 5)
    assert tally.not_reached == 1
    assert tally.print() == 1
    out = capfd.readouterr().out
    lines = out[out.index("== what ran") :].splitlines()
    assert "3 passed, 5 failed, 1 skipped" in lines
    assert [line for line in lines if line.startswith("1 not reached")]
    assert [line for line in lines if "empty: no test selected" in line]
    failed = "\n".join(lines[lines.index("== failed") :])
    assert "test_bad.py::test_c\n      (call) " in failed
    assert "AssertionError: so it is" in failed
    assert "test_dead.py::test_e\n      not reached" in failed, "it took the process along"
    assert "test_dead.py::test_f" not in failed, "one fault is one failure"
    assert "unborn\n      pytest ended with status 3" in failed
    assert "test_unreadable.py\n" in failed
    assert "test_teardown.py::test_h\n      (teardown) " in failed


def test_a_second_try_is_a_process_of_its_own_and_is_listed(
    gate: ModuleType,
    elsewhere: Callable[[dict[str, str]], list[Any]],
    capfd: pytest.CaptureFixture[str],
) -> None:
    first_time = "import os, pathlib\nmark = pathlib.Path(__file__).with_suffix('.mark')\nfirst = not mark.exists()\nmark.touch()\n"
    sources = {
        "shaky": f"{first_time}def test_a(): assert not first, 'the first time'\ndef test_b(): pass\n",
        "dies": f"{first_time}def test_c():\n    if first: os._exit(1)\ndef test_d(): pass\n",
        "wrong": "def test_e(): assert False\n",
        "unreadable": "def test_f( pass\n",
    }
    tally = gate.Tally(in_ci=True)
    gate.run_all(elsewhere(sources), tally)
    assert (tally.passed, tally.failed, tally.failed_steps) == (4, 2, 2)
    tally.print()
    out = capfd.readouterr().out
    assert "unreadable, 1 again" not in out, "what cannot be read is no accident"
    second = out[out.index("== passed at the second try only") : out.index("== failed\n")]
    assert "test_shaky.py::test_a\n" in second
    assert "AssertionError: the first time" in second
    assert "test_shaky.py::test_b" not in second
    assert "test_dies.py::test_c\n      not reached" in second
    assert "test_wrong.py::test_e" in out[out.index("== failed\n") :]


def test_a_group_that_used_up_its_budget_gets_no_second_try(
    gate: ModuleType,
    elsewhere: Callable[[dict[str, str]], list[Any]],
    capfd: pytest.CaptureFixture[str],
) -> None:
    [step] = elsewhere({"hangs": "import time\ndef test_a(): assert False\ndef test_b(): time.sleep(600)\n"})
    tally = gate.Tally(in_ci=True)
    gate.run_all([dataclasses.replace(step, budget_s=5.0)], tally)
    assert "again" not in capfd.readouterr().out
    [line] = tally.lines
    assert "hangs: still running after 5 s, stopped" in line


def test_what_a_run_started_ends_with_it(gate: ModuleType) -> None:
    sleep = [sys.executable, "-c", "import time; print(flush=True); time.sleep(600)"]
    marked = {**os.environ, gate.MARK: gate.RUN}
    others = {**os.environ, gate.MARK: "another"}
    with (
        subprocess.Popen(sleep, env=marked, stdout=subprocess.PIPE, start_new_session=True) as ours,
        subprocess.Popen(sleep, env=others, stdout=subprocess.PIPE) as other,
    ):
        for each in (ours, other):
            assert each.stdout is not None
            assert each.stdout.readline()
        gate.end_what_is_left()
        assert ours.wait(timeout=60) == -signal.SIGKILL
        assert other.poll() is None
        other.kill()


def test_many_failures_are_no_accident(gate: ModuleType) -> None:
    bad = {f"test_x.py::test_{i}": gate.Outcome(verdict="failed") for i in range(gate.SECOND_TRY_TESTS + 1)}
    assert gate.open_tests(bad) == ()
    few = dict(list(bad.items())[:-1]) | {"test_x.py::test_far": gate.Outcome(verdict="not reached")}
    assert len(gate.open_tests(few)) == gate.SECOND_TRY_TESTS + 1


def test_failures_are_counted_by_folder(gate: ModuleType) -> None:
    bad = {f"a/test_x.py::test_{i}": gate.Outcome(verdict="failed") for i in range(gate.SECOND_TRY_TESTS + 1)}
    accident = {"b/test_y.py::test_a": gate.Outcome(verdict="failed")}
    assert gate.open_tests(bad | accident) == tuple(accident)
    assert gate.open_tests({"a/test_x.py": gate.Outcome(verdict="failed")} | accident) == tuple(accident)


@pytest.mark.parametrize("own_session", [False, True])
def test_what_a_step_that_died_has_started_ends_before_the_next(gate: ModuleType, own_session: bool) -> None:
    sleep = [sys.executable, "-c", "import os; print(os.getpid(), flush=True); import time; time.sleep(600)"]
    dies = python(
        "import os, subprocess\n"
        f"child = subprocess.Popen({sleep!r}, stdout=subprocess.PIPE, start_new_session={own_session})\n"
        "print('pid', int(child.stdout.readline()), flush=True); os._exit(1)"
    )
    with tempfile.TemporaryFile() as output:
        status, _ = gate.run(gate.Step(name="dies", command=dies, budget_s=60.0), gate.Tally(), output)
        output.seek(0)
        child = Path("/proc") / output.read().split(b"pid ")[1].decode().strip()
    assert status == 1
    until = time.monotonic() + 60
    while runs(child):
        assert time.monotonic() < until, "what the step started was not stopped"
        time.sleep(0.01)


@pytest.mark.parametrize(("given", "lanes"), [("0", 1), ("3", 3), ("", None), ("many", None)])
def test_the_number_of_lanes_is_at_least_one(
    gate: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    given: str,
    lanes: int | None,
) -> None:
    seen: list[int] = []
    monkeypatch.setattr(gate, "run_all", lambda steps, tally: seen.append(tally.lanes))
    monkeypatch.setattr(gate, "keep_bytecode", lambda: None)
    monkeypatch.setattr(gate.signal, "signal", lambda *_: None)
    monkeypatch.setenv("GATE_LANES", given)
    status = gate.main(["lint"])
    if given == "many":
        assert (status, seen) == (2, [])
        assert "GATE_LANES is 'many'" in capfd.readouterr().err
    else:
        assert seen == [gate.LANES if lanes is None else lanes]


def test_nothing_run_is_not_a_pass(gate: ModuleType) -> None:
    assert gate.Tally().print() == 1


def test_every_folder_with_tests_is_a_group(gate: ModuleType, root: Path) -> None:
    tests = set((root / "tests").rglob("test_*.py"))
    elsewhere = {path for path in tests if path.relative_to(root / "tests").parts[0] in gate.OWN_TARGETS}
    for path in tests - elsewhere:
        assert [group for group in gate.groups() if path.is_relative_to(group)], path
    assert len(gate.groups()) == len(set(gate.groups()))


def test_every_folder_is_in_one_process_or_in_parts(gate: ModuleType, root: Path) -> None:
    steps = gate.pytest_steps(Path("reports"), pytest_arguments=(), budget_s=60.0)
    whole = [root / place for step in steps for place in step.select if not place.endswith(".py")]
    in_parts = {name for name, parts in gate.FIRST_GROUPS.items() if parts > 1}
    assert sorted(whole) == sorted(group for group in gate.groups() if group.name not in in_parts)
    begun = [gate.ROOT / step.select[0] for step in steps if "part " not in step.name]
    assert begun[: len(gate.FIRST_GROUPS) - len(in_parts)] == whole[: len(gate.FIRST_GROUPS) - len(in_parts)]


def test_every_file_of_a_group_in_parts_is_in_one_of_them(gate: ModuleType, root: Path) -> None:
    steps = gate.pytest_steps(Path("reports"), pytest_arguments=(), budget_s=60.0)
    assert len({step.report for step in steps}) == len(steps)
    for name, parts in gate.FIRST_GROUPS.items():
        if parts == 1:
            continue
        of_it = [step for step in steps if f"/{name}, part " in step.name]
        assert len(of_it) == parts
        files = [file for step in of_it for file in step.select]
        assert sorted(files) == sorted(
            str(path.relative_to(root)) for path in (root / "tests" / name).rglob("test_*.py")
        )
