"""The gate that CI trusts: a hang costs its budget only, a crash counts, and nothing is reported that did not run."""

from __future__ import annotations

import importlib.util
import sys
import time
from pathlib import Path
from types import ModuleType

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
    out, err = capfd.readouterr()
    assert "still running after 3 s" in out
    assert "went on" in out
    assert "most recent call first" in err, "faulthandler shows where it hung"
    grandchild = Path("/proc") / ready.read_text(encoding="utf-8")
    if Path("/proc/self").exists() and grandchild.exists():  # gone, or a zombie that init has not reaped yet
        assert ") Z " in (grandchild / "stat").read_text(encoding="utf-8")


def test_budget_of_all_tests_reports_what_it_left_out(
    gate: ModuleType, capfd: pytest.CaptureFixture[str]
) -> None:
    tally = gate.Tally()
    gate.run_all([gate.Step(name="late", command=python("pass"), budget_s=60.0)], tally, budget_s=0.0)
    gate.run_all([gate.Step(name="fine", command=python("pass"), budget_s=60.0)], tally)
    assert tally.print() == 1, "a check that was left out is not a pass"
    assert "late: the budget" in capfd.readouterr().out


def test_pytest_counts_are_added_up_and_a_crash_is_a_failure(
    gate: ModuleType, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    sources = {
        "good": "import pytest\ndef test_a(): pass\ndef test_b(): pytest.skip('x')\n",
        "bad": "def test_c(): assert False\ndef test_d(): pass\n",
        "dead": "import os\ndef test_e(): os._exit(0)\n",
        "empty": "import pytest\npytestmark = pytest.mark.long\ndef test_f(): pass\n",
    }
    steps = []
    for name, source in sources.items():
        path = tmp_path / f"test_{name}.py"
        path.write_text(source, encoding="utf-8")
        report = tmp_path / f"{name}.xml"
        (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = long: x\n", encoding="utf-8")
        command = (sys.executable, "-m", "pytest", "-q", "-m", "not long", f"--junit-xml={report}", str(path))
        steps.append(gate.Step(name=name, command=command, budget_s=60.0, report=report))
    tally = gate.Tally()
    gate.run_all(steps, tally)
    assert (tally.passed, tally.failed, tally.skipped, tally.failed_steps) == (2, 2, 1, 2)
    assert tally.print() == 1
    out = capfd.readouterr().out
    assert "2 passed, 2 failed, 1 skipped" in out.splitlines()
    assert "dead: ended with status 0 before pytest could count" in out
    assert "empty: no test selected" in out


def test_nothing_run_is_not_a_pass(gate: ModuleType) -> None:
    assert gate.Tally().print() == 1


def test_every_folder_with_tests_is_a_group(gate: ModuleType, root: Path) -> None:
    tests = set((root / "tests").rglob("test_*.py"))
    judged_elsewhere = {
        path for path in tests if path.relative_to(root / "tests").parts[0] in gate.OWN_TARGETS
    }
    for path in tests - judged_elsewhere:
        assert [group for group in gate.groups() if path.is_relative_to(group)], path
    assert len(gate.groups()) == len(set(gate.groups()))
