"""What is wrong in a task file is a sentence that names the file, the place and what may stand there."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from evals.run import Outcome, holds, pass_hat, table
from evals.task_files import HERE, TaskFileWrong, read_tasks


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    (tmp_path / "tasks").mkdir()
    shutil.copy(HERE / "tasks" / "read-backlog.yaml", tmp_path / "tasks" / "one.yaml")
    shutil.copy(HERE / "eval.yaml", tmp_path)
    return tmp_path


WRONG: dict[str, tuple[Callable[[str], str], str]] = {
    "unknown field": (
        lambda text: text.replace("  verify:", "  verfiy:"),
        "spec has the unknown field 'verfiy'; known are cleanup, prompt, setup, verify",
    ),
    "unknown field of a step": (
        lambda text: text.replace("        contains:", "        contain:"),
        "spec.verify[0].llmJudge has the unknown field 'contain'; known are contains",
    ),
    "unknown step": (
        lambda text: text.replace("    - llmJudge:", "    - judge:"),
        "spec.verify[0] is {'judge': {'contains': '37'}}; write one of script, llmJudge with its fields",
    ),
    "other form": (
        lambda text: text.replace("v1alpha2", "v1alpha1"),
        "apiVersion is 'mcpchecker/v1alpha1'; write mcpchecker/v1alpha2",
    ),
    "no check": (
        lambda text: text.split("  verify:")[0],
        "spec.verify is empty; a task without a check is passed by doing nothing",
    ),
    "number for words": (
        lambda text: text.replace('contains: "37"', "contains: 37"),
        "spec.verify[0].llmJudge.contains is 37; write a text (in quotes, if it is a number)",
    ),
    "no set": (
        lambda text: text.replace('calls: "5"', 'calls: "6"'),
        "none of eval.yaml's taskSets selects it; give it the label `calls` of one",
    ),
    "timeout": (
        lambda text: text.replace(
            "        inline: |\n          #!", "        timeout: soon\n        inline: |\n          #!", 1
        ),
        "spec.setup[0].script.timeout is 'soon'; write seconds or minutes: 30s, 2m",
    ),
    "no YAML": (lambda text: text + "\n  - {", "cannot be read as YAML: while parsing"),
    "a list": (lambda text: "- a\n", "the file is ['a']; write fields: apiVersion, kind, metadata, spec"),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_is_wrong_is_named(copied: Path, case: str) -> None:
    spoil, said = WRONG[case]
    file = copied / "tasks" / "one.yaml"
    file.write_text(spoil(file.read_text()))
    with pytest.raises(TaskFileWrong) as wrong:
        read_tasks(copied / "eval.yaml")
    assert str(wrong.value).startswith(f"{file}: ")
    assert said in str(wrong.value)


def test_a_task_of_two_sets_and_two_of_one_name_are_refused(copied: Path) -> None:
    file = copied / "tasks" / "one.yaml"
    shutil.copy(file, copied / "tasks" / "two.yaml")
    with pytest.raises(TaskFileWrong, match="has the name 'read-backlog' too; rename one"):
        read_tasks(copied / "eval.yaml")
    (copied / "tasks" / "two.yaml").unlink()
    evaluation = copied / "eval.yaml"
    evaluation.write_text(evaluation.read_text().replace('calls: "10"', 'calls: "5"'))
    with pytest.raises(TaskFileWrong, match=r"two of eval\.yaml's taskSets select it"):
        read_tasks(evaluation)
    evaluation.write_text(evaluation.read_text().replace("maxToolCalls: 5", "maxToolCals: 5"))
    with pytest.raises(TaskFileWrong, match="assertions has the unknown field 'maxToolCals'"):
        read_tasks(evaluation)


def test_an_answer_holds_words_and_not_parts_of_words() -> None:
    assert holds("It has **40** messages.", "40")
    assert holds("the Rule engine\ntimeout", "rule engine timeout")
    assert not holds("140 messages, 40.5 s, 3.40 and 400", "40")
    assert not holds("", "40")


def test_pass_hat_k_is_the_chance_of_k_in_a_row() -> None:
    def outcomes(*passed: str) -> list[Outcome]:
        return [
            Outcome(task=name, passed=mark == "+", why=None, calls=2, tokens=100, seconds=1.0)
            for name, marks in enumerate(passed)
            for mark in marks
        ]  # type: ignore[arg-type]

    some = outcomes("+++", "++-", "---")
    assert pass_hat(some, 1) == pytest.approx((1 + 2 / 3 + 0) / 3)
    assert pass_hat(some, 3) == pytest.approx(1 / 3)
    assert pass_hat(outcomes("++++", "+++-"), 3) == pytest.approx((1 + 1 / 4) / 2)
    assert pass_hat(outcomes("++"), 3) is None
    row = table("2026-11-30", "some-model", some, 3).splitlines()[2]
    assert row == "| 2026-11-30 | some-model | 3 | 56 % | 33 % | 2.0 | 100.0 | 1.0 |"
