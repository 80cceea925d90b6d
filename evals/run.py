#!/usr/bin/env python3
"""Have a model, or the scripted player, do the tasks of evals/ against a running broker, and print a table.

    danube up --memory                                  # a broker that nobody needs: tasks change and destroy
    python evals/run.py --scripted
    python evals/run.py --endpoint https://api.openai.com/v1 --model gpt-5
    python evals/run.py --endpoint https://api.anthropic.com/v1/messages --model claude-sonnet-4-5 --tasks 'keep-*'

The key of an endpoint is read from EVALS_API_KEY. The broker is that of DANUBE_BROKER_URL and DANUBE_ADMIN_ENDPOINT,
its MCP address that of mcp-config.yaml or --mcp. Results go to evals/results/<date>-<model>.json.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import os
import re
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import anyio
import httpx
import yaml
from mcp import Client
from mcp.types import Implementation

HERE: Final = Path(__file__).resolve().parent
if __package__ in (None, ""):  # run as a file
    sys.path.insert(0, str(HERE.parent))

from evals.players import Model, Player, PlayFailed, Scripted  # noqa: E402
from evals.task_files import Step, Task, TaskFileWrong, read_mcp_url, read_tasks  # noqa: E402

__all__ = ["Outcome", "StepFailed", "attempt", "carried_out", "judged", "pass_hat", "scripts", "table"]

TASK_TIMEOUT_S: Final = 600.0
REPEAT: Final = 3  # pass^3: three in a row, which is what somebody who leaves it alone depends on


class StepFailed(Exception):
    """A step of a task did not hold; the message has its output."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """One attempt of a task."""

    task: str
    passed: bool
    why: str | None  # what did not hold
    calls: int
    tokens: int | None
    seconds: float


async def carried_out(steps: Sequence[Step], task: Task, answer: str) -> None:
    """Carry out the steps in order.

    Raises:
        StepFailed: a script ended with another status than 0 or too late, or the answer lacks words it has to hold.
    """
    for step in steps:
        if step.contains is not None:
            if not holds(answer, step.contains):
                raise StepFailed(f"the answer does not hold {step.contains!r}: {answer[:500]!r}")
        elif step.script is not None:
            await _script(step.script, task, step.timeout_s)


def holds(answer: str, words: str) -> bool:
    """Return whether the answer has the words, whatever their case, and as words: 40 is not in 140.

    mcpchecker has a judge decide; here words decide, so all tasks ask for names and numbers of the cluster.
    """
    plain = " ".join(answer.casefold().split())
    return re.search(rf"(?<![\w.]){re.escape(words.casefold())}(?!\w|\.\d)", plain) is not None


async def _script(script: str, task: Task, timeout_s: float) -> None:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "step"
        file.write_text(script, encoding="utf-8")
        file.chmod(0o700)
        process = await asyncio.create_subprocess_exec(
            *([] if script.startswith("#!") else ["bash"]),
            str(file),
            cwd=task.file.parent,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        try:
            async with asyncio.timeout(timeout_s):
                output, _ = await process.communicate()
        except TimeoutError:
            raise StepFailed(f"a step took longer than {timeout_s:g} s:\n{script}") from None
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
    if process.returncode:
        text = output.decode("utf-8", "replace")[-2000:]
        raise StepFailed(f"a step ended with {process.returncode}:\n{script}\n{text}")


async def judged(task: Task, answer: str) -> str | None:
    """Return what does not hold of the task's checks, or None."""
    try:
        await carried_out(task.verify, task, answer)
    except StepFailed as failed:
        return str(failed)
    return None


async def attempt(task: Task, player: Player, client: Client) -> Outcome:
    """Set a task up, have it played, judge it, and clean up.

    Raises:
        StepFailed: the set-up or the clean-up failed, which is no fault of the player.
    """
    started, calls, tokens = time.monotonic(), 0, None
    try:
        await carried_out(task.setup, task, "")
        started = time.monotonic()
        try:
            async with asyncio.timeout(TASK_TIMEOUT_S):
                played = await player.play(task.name, task.prompt, client)
        except TimeoutError:
            why: str | None = f"it took longer than {TASK_TIMEOUT_S:g} s"
        except PlayFailed as failed:
            why = str(failed)
        else:
            calls, tokens = played.calls, played.tokens
            why = await judged(task, played.answer)
            limits = task.assertions
            if why is None and not limits.min_calls <= calls <= limits.max_calls:
                why = f"it made {calls} calls; {limits.min_calls} to {limits.max_calls} are allowed"
        seconds = time.monotonic() - started
    finally:
        await carried_out(task.cleanup, task, "")
    return Outcome(
        task=task.name, passed=why is None, why=why, calls=calls, tokens=tokens, seconds=round(seconds, 1)
    )


def pass_hat(outcomes: Sequence[Outcome], k: int) -> float | None:
    """Return pass^k: how likely k attempts of a task all pass, averaged over tasks. None: fewer than k attempts.

    The estimate of tau-bench (Yao and others, 2024): C(passed, k) / C(attempts, k).
    """
    by_task: dict[str, list[bool]] = {}
    for one in outcomes:
        by_task.setdefault(one.task, []).append(one.passed)
    if not by_task or any(len(each) < k for each in by_task.values()):
        return None
    return sum(math.comb(sum(each), k) / math.comb(len(each), k) for each in by_task.values()) / len(by_task)


def table(date: str, model: str, outcomes: Sequence[Outcome], repeat: int) -> str:
    """Return the table of one model: a row of Markdown under its head."""

    def mean(values: Sequence[float]) -> str:
        return f"{sum(values) / len(values):,.1f}" if values else "-"

    passed = [
        f"{100 * rate:.0f} %" if (rate := pass_hat(outcomes, k)) is not None else "-" for k in (1, repeat)
    ]
    cells = [
        date,
        model,
        str(len({one.task for one in outcomes})),
        *passed,
        mean([one.calls for one in outcomes]),
        mean([one.tokens for one in outcomes if one.tokens is not None]),
        mean([one.seconds for one in outcomes]),
    ]
    head = [
        "date",
        "model",
        "tasks",
        "pass^1",
        f"pass^{repeat}",
        "calls a task",
        "tokens a task",
        "seconds a task",
    ]
    return "\n".join(f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), cells))


def scripts() -> Mapping[str, Mapping[str, object]]:
    """Return the calls of the scripted player, by task."""
    read: Mapping[str, Mapping[str, object]] = yaml.safe_load(
        (HERE / "scripted.yaml").read_text(encoding="utf-8")
    )
    return read


async def run(tasks: Sequence[Task], player: Player, mcp_url: str, repeat: int) -> list[Outcome]:
    outcomes: list[Outcome] = []
    broken: StepFailed | None = None
    who = Implementation(name="danube-evals", version="1")
    async with Client(mcp_url, client_info=who) as client:
        for task in tasks:
            for _ in range(repeat):
                try:
                    outcome = await attempt(task, player, client)
                except StepFailed as failed:  # raised behind the session, whose task group would wrap it
                    broken = failed
                    break
                outcomes.append(outcome)
                print(
                    f"{'ok  ' if outcome.passed else 'FAIL'} {task.name}: {outcome.why or f'{outcome.calls} calls'}"
                )
            if broken is not None:
                break
    if broken is not None:
        raise broken
    return outcomes


async def main(arguments: argparse.Namespace) -> int:
    own = str(
        Path(sys.executable).parent
    )  # has danube, and a python3 with pydanube, for the scripts of tasks
    if own not in os.environ.get("PATH", "").split(os.pathsep):
        os.environ["PATH"] = os.pathsep.join([own, os.environ.get("PATH", "")])
    tasks = read_tasks(pattern=arguments.tasks)
    if not tasks:
        raise TaskFileWrong(f"--tasks {arguments.tasks!r} matches none of the tasks in {HERE / 'tasks'}")
    async with httpx.AsyncClient() as web:
        player: Player = (
            Scripted(scripts())
            if arguments.scripted
            else Model(arguments.endpoint, arguments.model, os.environ.get("EVALS_API_KEY"), web)
        )
        outcomes = await run(tasks, player, arguments.mcp or read_mcp_url(), arguments.repeat)
    date = f"{datetime.now(UTC):%Y-%m-%d}"
    report = HERE / "results" / f"{date}-{re.sub(r'[^A-Za-z0-9._-]', '-', player.name)}.json"
    report.parent.mkdir(exist_ok=True)
    kept = [asdict(replace(one, why=one.why and one.why[:500])) for one in outcomes]
    report.write_text(
        json.dumps(
            {"date": date, "model": player.name, "repeat": arguments.repeat, "outcomes": kept}, indent=1
        )
        + "\n",
        encoding="utf-8",
    )
    print(f"\n{table(date, player.name, outcomes, arguments.repeat)}\n\n{report}")
    return 0 if all(one.passed for one in outcomes) else 6


def parsed(words: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--scripted", action="store_true", help="play the calls of scripted.yaml")
    parser.add_argument("--endpoint", metavar="URL", help="…/messages: Anthropic's form; any other: OpenAI's")
    parser.add_argument("--model", metavar="M", help="its name at the endpoint")
    parser.add_argument("--tasks", metavar="GLOB", default="*", help="only tasks with such names")
    parser.add_argument("--repeat", metavar="N", type=int, default=REPEAT, help="attempts of each task [3]")
    parser.add_argument("--mcp", metavar="URL", help="the server, in place of mcp-config.yaml's")
    arguments = parser.parse_args(words)
    if arguments.scripted == bool(arguments.endpoint and arguments.model):
        parser.error("give --endpoint and --model, or --scripted")
    if arguments.repeat < 1:
        parser.error(f"--repeat {arguments.repeat}: give 1 or more")
    return arguments


if __name__ == "__main__":
    try:
        sys.exit(anyio.run(main, parsed()))
    except (TaskFileWrong, StepFailed) as wrong:
        print(wrong, file=sys.stderr)
        sys.exit(2)
