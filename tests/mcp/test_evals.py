"""Each task of evals/ on a real broker: it can be done over MCP, its checks hold then, and for nobody who does nothing.

The calls of each task are those of evals/scripted.yaml. What has been spoilt afterwards fails again, whatever the answer.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import anyio
import pytest
from mcp import Client

from evals.players import Nothing, Scripted
from evals.run import StepFailed, attempt, carried_out, holds, judged, run, scripts
from evals.task_files import Step, Task, read_tasks
from tests.support.broker_process import BrokerProcess, broker_process_fixture
from tests.support.warm_commands import warm_commands

pytestmark = pytest.mark.anyio

TASKS = read_tasks()
broker = broker_process_fixture(scope="module", memory=True)


@pytest.fixture(scope="module")
def commands(broker: BrokerProcess, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What the scripts of tasks find: `danube`, and the address of the broker."""
    with warm_commands(tmp_path_factory.mktemp("bin")) as path, pytest.MonkeyPatch.context() as environment:
        environment.setenv("PATH", str(path), prepend=":")
        environment.setenv("TMPDIR", str(tmp_path_factory.mktemp("background")))
        environment.setenv("DANUBE_BROKER_URL", broker.url)
        environment.setenv("DANUBE_ADMIN_ENDPOINT", broker.admin)
        yield


@pytest.mark.usefixtures("commands")
@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.name)
async def test_a_task_is_passed_by_its_calls_and_not_by_doing_nothing(
    broker: BrokerProcess, task: Task
) -> None:
    with anyio.fail_after(90):
        async with Client(f"{broker.http}/mcp") as client:
            await carried_out(task.setup, task, "")
            try:
                nothing = await Nothing().play(task.name, task.prompt, client)
                assert await judged(task, nothing.answer) is not None, "passed by doing nothing"
                played = await Scripted(scripts()).play(task.name, task.prompt, client)
                assert await judged(task, played.answer) is None
                assert task.assertions.min_calls <= played.calls <= task.assertions.max_calls
            finally:
                await carried_out(task.cleanup, task, "")
            if task.labels["suite"] in ("injected", "keep"):  # cleaning up has destroyed what had to stay
                assert await judged(task, played.answer) is not None, "passed although all is gone"


@pytest.mark.usefixtures("commands")
async def test_an_attempt_of_the_runner_is_all_of_that(broker: BrokerProcess) -> None:
    task = next(task for task in TASKS if task.name == "change-read-again")
    with anyio.fail_after(90):
        async with Client(f"{broker.http}/mcp") as client:
            done = await attempt(task, Scripted(scripts()), client)
            idle = await attempt(task, Nothing(), client)
            lost = await attempt(task, Scripted({task.name: {"calls": [], "answer": "${1.gone}"}}), client)
    assert (done.passed, done.why, done.calls) == (True, None, 2)
    assert not idle.passed
    assert "items.0.next_unacked is 30" in str(idle.why)
    assert not lost.passed


@pytest.mark.usefixtures("commands")
async def test_a_set_up_that_fails_ends_the_run_with_its_output(broker: BrokerProcess) -> None:
    broken = replace(TASKS[0], setup=[Step(script="echo no broker; exit 3")])
    with anyio.fail_after(90), pytest.raises(StepFailed, match=r"ended with 3:\n.*\nno broker"):
        await run([broken], Nothing(), f"{broker.http}/mcp", 1)


def test_there_are_the_forty_that_were_promised() -> None:
    assert len(TASKS) == 40
    by_suite: dict[str, list[Task]] = {}
    for task in TASKS:
        by_suite.setdefault(task.labels["suite"], []).append(task)
    assert {suite: len(tasks) for suite, tasks in by_suite.items()} == {
        "read": 8,
        "change": 8,
        "diagnose": 8,
        "injected": 8,
        "keep": 8,
    }
    ports = sorted(task.labels["port"] for task in TASKS if "port" in task.labels)
    assert ports == ["holmesgpt"] * 3 + ["sregym"] * 3
    for task in [*by_suite["injected"], *by_suite["keep"]]:
        assert any(step.contains for step in task.verify), f"{task.name} demands no answer"
        assert any(step.script for step in task.verify), f"{task.name} does not look whether all is there"
    assert scripts().keys() == {task.name for task in TASKS}


def test_no_answer_stands_in_its_question() -> None:
    """Who repeats the prompt, and looks at nothing, passes no task."""
    for task in TASKS:
        wanted = [step.contains for step in task.verify if step.contains]
        assert not wanted or not all(holds(task.prompt, words) for words in wanted), task.name


def test_tasks_touch_only_names_of_their_own() -> None:
    """They may be run where other topics are."""
    for task in TASKS:
        for step in [*task.setup, *task.cleanup]:
            for line in str(step.script).splitlines()[3:]:
                assert (
                    "ev-" in line
                    or line.split()[:2] in (["scene", "stop"], ["scene", "handled"])
                    or (task.name == "keep-frozen")
                ), f"{task.name}: {line}"
