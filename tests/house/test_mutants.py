"""`make mutants`: the faults, the tests that are to find them, and the list of survivors. Faults by name."""

from __future__ import annotations

import ast
import json
import os
from pathlib import Path

import pytest

from tools import faults as fault_runs
from tools.faults import ROOMS, ROOT, Cover, Result, Run, covering, draw, equivalents, write_survivors
from tools.faults_named import NamedFault, named_faults
from tools.faults_process import TestProcess
from tools.faults_server import function_around
from tools.gate import MARK, RUN
from tools.mutations import Mutation, mutations_of

SOURCE = b'''\
"""A module."""

LIMIT = 5


class Kept:
    def __init__(self, size: int = 3) -> None:
        self.size = size

    def may_go(self, end: int, slowest: int | None) -> bool:
        """Say whether it may."""
        if slowest is not None and end > slowest:
            raise ValueError(f"{end + 1} is unread")
        assert end < LIMIT
        log.info("gone", extra={"end": end + 1})
        for item in range(2):
            if not item:
                continue
            self.drop(item)
        return end - 1 == self.size
'''


def faults() -> list[Mutation]:
    return mutations_of("kept.py", SOURCE)


def test_each_fault_changes_one_place_and_is_python() -> None:
    found = faults()
    assert [fault.shown for fault in found] == [
        "if slowest ⟦is not → is⟧ None and end > slowest:",
        "if slowest is not None ⟦and → or⟧ end > slowest:",
        "if slowest is not None and end ⟦> → >=⟧ slowest:",
        '⟦raise ValueError(f"{end + 1} is unread") → pass⟧',
        "for item in range(⟦2 → 3⟧):",
        "if ⟦not item → item⟧:",
        "⟦continue → break⟧",
        "⟦self.drop(item) → pass⟧",
        "return end ⟦- → +⟧ 1 == self.size",
        "return end - ⟦1 → 2⟧ == self.size",
        "return end - 1 ⟦== → !=⟧ self.size",
    ]
    assert {fault.function for fault in found} == {"Kept.may_go"}
    for fault in found:
        changed = fault.applied_to(SOURCE)
        assert changed != SOURCE
        ast.parse(changed)


def test_every_fault_of_the_critical_rooms_has_a_name_of_its_own_and_is_python() -> None:
    for room in ROOMS.values():
        for source in room.sources:
            path = ROOT / source
            assert path.exists(), f"{source} has moved: tools/faults.py names it"
            for file in [path] if path.is_file() else path.rglob("*.py"):
                text = file.read_bytes()
                found = mutations_of(str(file.relative_to(ROOT)), text)
                assert len({fault.name for fault in found}) == len(found)
                for fault in found[-1:]:  # of each, of all files, it takes a minute
                    ast.parse(fault.applied_to(text))
        for folder in room.tests:
            assert (ROOT / folder).exists(), f"{folder} has moved: tools/faults.py names it"


def test_the_same_seed_draws_the_same_faults_of_each_room_in_turn() -> None:
    by_room = {"one": faults(), "two": faults()[:2]}
    first = [(room, fault.name) for room, fault in draw(by_room, 7)]
    assert first == [(room, fault.name) for room, fault in draw(by_room, 7)]
    assert first != [(room, fault.name) for room, fault in draw(by_room, 8)]
    assert [room for room, _ in first[:5]] == ["one", "two", "one", "two", "one"]
    assert len(first) == len(faults()) + 2


def test_the_quickest_tests_that_run_the_statement_come_first_and_unsteady_ones_do_not_count() -> None:
    (fault,) = (each for each in faults() if "> → >=" in each.shown)
    cover = Cover(
        seconds={"slow": 5.0, "quick": 0.1, "other": 0.1, "unsteady": 0.0, "endless": 1000.0},
        failed=[],
        lines={"kept.py": {"12": ["slow", "quick", "unsteady", "endless"], "13": ["other"]}},
        sources={},
    )
    assert covering(fault, [cover], {"unsteady"}) == [("quick", 0.1), ("slow", 5.0)]
    assert covering(fault, [Cover(seconds={}, failed=[], lines={}, sources={})], set()) == []


def test_survivors_are_named_by_room_and_equivalent_ones_do_not_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    listed = tmp_path / "equivalent.toml"
    listed.write_text('[[equivalent]]\nname = "e"\nreason = "the caller checks it"\n')
    monkeypatch.setattr(fault_runs, "EQUIVALENT", listed)
    run = Run(tmp_path / "run.jsonl", 7, 0.0)
    for name, verdict in (("a", "caught"), ("b", "survived"), ("c", "not run"), ("e", "survived")):
        run.note(Result(name=name, room="journal", verdict=verdict))
    assert [json.loads(line)["name"] for line in run.results_path.read_text().splitlines()] == list("abce")
    assert write_survivors(run, tmp_path / "survivors.txt", list("abcde")) == (2, 3)
    assert (tmp_path / "survivors.txt").read_text().splitlines() == [
        "2 of 3 faults survived; seed 7", "", "journal: 2 of 3", "  b", "  c   (no near test runs it)",
    ]  # fmt: skip


def test_every_fault_that_counts_as_equivalent_exists_and_has_a_reason() -> None:
    known = equivalents()
    for name, reason in known.items():
        assert len(reason) > 20, f"{name}: say why it changes no promise"
        path = ROOT / name.partition(" ")[0]
        assert path.is_file(), f"{name}: the file is gone; take the entry out"
        assert name in {fault.name for fault in mutations_of(str(path.relative_to(ROOT)), path.read_bytes())}


@pytest.mark.parametrize("fault", named_faults(), ids=lambda fault: fault.promise)
def test_every_named_fault_can_be_put_in_and_its_test_exists(fault: NamedFault) -> None:
    ast.parse(fault.applied_to((ROOT / fault.path).read_text(encoding="utf-8")))
    file, _, test = fault.test.partition("::")
    assert f"def {test.partition('[')[0]}(" in (ROOT / file).read_text(encoding="utf-8")


def test_a_named_fault_whose_text_is_gone_says_what_to_write() -> None:
    fault = NamedFault(promise="p", path="kept.py", old="a < b", new="a <= b", test="test_kept.py::test_it")
    with pytest.raises(ValueError, match="has 0 times 'a < b'"):
        fault.applied_to("a > b")


def test_the_function_around_a_line_is_the_outermost_one_with_its_decorators() -> None:
    tree = ast.parse(
        "class A:\n    @property\n    def b(self):\n        def c():\n            return 1\n        return c\n"
    )
    assert {function_around(tree, line) for line in (2, 3, 5, 6)} == {("b", 2)}
    with pytest.raises(ValueError, match="line 1"):
        function_around(ast.parse("x = 1"), 1)


def test_a_fault_is_seen_by_its_own_run_only_wherever_the_function_is_held(tmp_path: Path) -> None:
    """By modules that imported the function before, by processes that tests start, and by no later run."""
    module = tmp_path / "kept.py"
    sound = "def may_go(end):\n    return end > 1\n"
    module.write_text(sound)
    (tmp_path / "test_kept.py").write_text(
        "import subprocess, sys\n"
        "from kept import may_go\n\n\n"
        "def test_here():\n    assert not may_go(1)\n\n\n"
        "def test_there():\n"
        "    words = [sys.executable, '-c', 'import kept; assert not kept.may_go(1)']\n"
        "    assert subprocess.run(words).returncode == 0\n"
    )
    roots = os.pathsep.join((str(ROOT), str(tmp_path)))
    environment = {name: value for name, value in os.environ.items() if name != MARK}
    environment |= {"PYTHONPATH": roots, "PYTHONDONTWRITEBYTECODE": "1"}
    report = tmp_path / "report.jsonl"
    process = TestProcess(tmp_path, ["test_kept.py"], tmp_path / "output.txt", environment=environment)

    def outcomes(*tests: str, fault: tuple[Path, int] | None = None) -> list[str]:
        assert process.run(tests, report, environment={MARK: RUN}, limit_s=60, fault=fault) == "ended"
        return [json.loads(line)["outcome"] for line in report.read_text().splitlines()]

    try:
        here, there = process.tests
        assert outcomes(here, there) == ["passed", "passed"]
        module.write_text(sound.replace(">", ">="))
        assert outcomes(here, fault=(module, 2))[0] == "failed"
        assert outcomes(there, fault=(module, 2))[0] == "failed"
        module.write_text(sound)
        assert outcomes(here, there) == ["passed", "passed"]
    finally:
        process.close()
