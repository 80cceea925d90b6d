"""Read the task files, in mcpchecker's form `mcpchecker/v1alpha2`, and the file that says how they are judged.

mcpchecker passes over fields it does not know. Here an unknown field is refused, because it is most often a misspelt check.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import yaml

__all__ = ["Assertions", "Step", "Task", "TaskFileWrong", "read_mcp_url", "read_tasks"]

API_VERSION: Final = "mcpchecker/v1alpha2"
HERE: Final = Path(__file__).resolve().parent
#: mcpchecker's is 5 min; ours take seconds, and a hung one should not hold the rest up
STEP_TIMEOUT_S: Final = 60.0
_UNITS: Final = {"s": 1.0, "m": 60.0}
#: of each object, by its place: the fields that may stand there
_FIELDS: Final[dict[str, frozenset[str]]] = {
    "task": frozenset({"kind", "apiVersion", "metadata", "spec"}),
    "metadata": frozenset({"name", "difficulty", "labels", "runs", "parallel"}),
    "spec": frozenset({"setup", "verify", "cleanup", "prompt"}),
    "prompt": frozenset({"inline"}),
    "script": frozenset({"inline", "timeout"}),
    "llmJudge": frozenset({"contains"}),
    "eval": frozenset({"kind", "metadata", "config"}),
    "config": frozenset({"agent", "mcpConfigFile", "llmJudge", "taskSets"}),
    "taskSet": frozenset({"glob", "labelSelector", "assertions"}),
    "assertions": frozenset({"toolsUsed", "minToolCalls", "maxToolCalls"}),
}
_STEPS: Final = {"setup": ("script",), "verify": ("script", "llmJudge"), "cleanup": ("script",)}


class TaskFileWrong(ValueError):
    """A task file, or eval.yaml, holds what is not of the form; the message names file, place and remedy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A script, or words that the answer has to hold."""

    script: str | None = None
    timeout_s: float = STEP_TIMEOUT_S
    contains: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Assertions:
    """How many calls a task may take, whatever its outcome."""

    min_calls: int
    max_calls: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One task: its prompt, and the steps around it."""

    name: str
    file: Path
    labels: Mapping[str, str]
    prompt: str
    setup: Sequence[Step]
    verify: Sequence[Step]
    cleanup: Sequence[Step]
    assertions: Assertions


def read_tasks(evaluation: Path = HERE / "eval.yaml", pattern: str = "*") -> list[Task]:
    """Return the tasks that `evaluation` selects and whose name matches `pattern`, by name.

    Raises:
        TaskFileWrong: a file is not of the form, or a task is in no set or in several.
    """
    judged = _mapping(_load(evaluation), evaluation, "eval", "eval")
    config = _mapping(judged.get("config"), evaluation, "config", "config")
    found: dict[Path, Task] = {}
    for place, item in enumerate(_list(config.get("taskSets"), evaluation, "config.taskSets")):
        where = f"config.taskSets[{place}]"
        chosen = _mapping(item, evaluation, where, "taskSet")
        wanted = _labels(chosen.get("labelSelector", {}), evaluation, f"{where}.labelSelector")
        limits = _mapping(chosen.get("assertions"), evaluation, f"{where}.assertions", "assertions")
        assertions = Assertions(
            min_calls=_count(limits, "minToolCalls", evaluation, where),
            max_calls=_count(limits, "maxToolCalls", evaluation, where),
        )
        glob = _text(chosen.get("glob"), evaluation, f"{where}.glob")
        for file in sorted(evaluation.parent.glob(glob)):
            task = _read_task(file, assertions)
            if not wanted.items() <= task.labels.items():
                continue
            if file in found:
                raise TaskFileWrong(
                    f"{file}: two of {evaluation.name}'s taskSets select it; make their labelSelectors disjoint"
                )
            found[file] = task
    unjudged = sorted(set(evaluation.parent.glob("tasks/*.yaml")) - set(found))
    if unjudged:
        raise TaskFileWrong(
            f"{unjudged[0]}: none of {evaluation.name}'s taskSets selects it; give it the label `calls` of one"
        )
    tasks = sorted(found.values(), key=lambda task: task.name)
    for one, other in pairwise(tasks):
        if one.name == other.name:
            raise TaskFileWrong(f"{other.file}: {one.file} has the name {one.name!r} too; rename one")
    return [task for task in tasks if fnmatch.fnmatch(task.name, pattern)]


def read_mcp_url(file: Path = HERE / "mcp-config.yaml") -> str:
    """Return the address of the server `danube`."""
    servers = _load(file)
    try:
        return str(servers["mcpServers"]["danube"]["url"])
    except (KeyError, TypeError):
        raise TaskFileWrong(f"{file}: mcpServers.danube.url is missing; write the address of /mcp") from None


def _read_task(file: Path, assertions: Assertions) -> Task:
    body = _mapping(_load(file), file, "the file", "task")
    for field, value in (("kind", "Task"), ("apiVersion", API_VERSION)):
        if body.get(field) != value:
            raise TaskFileWrong(f"{file}: {field} is {body.get(field)!r}; write {value}")
    metadata = _mapping(body.get("metadata"), file, "metadata", "metadata")
    spec = _mapping(body.get("spec"), file, "spec", "spec")
    prompt = _mapping(spec.get("prompt"), file, "spec.prompt", "prompt")
    steps = {
        phase: [
            _step(item, file, f"spec.{phase}[{place}]", kinds)
            for place, item in enumerate(_list(spec.get(phase, []), file, f"spec.{phase}"))
        ]
        for phase, kinds in _STEPS.items()
    }
    if not steps["verify"]:
        raise TaskFileWrong(
            f"{file}: spec.verify is empty; a task without a check is passed by doing nothing"
        )
    return Task(
        name=_text(metadata.get("name"), file, "metadata.name"),
        file=file,
        labels=_labels(metadata.get("labels", {}), file, "metadata.labels"),
        prompt=_text(prompt.get("inline"), file, "spec.prompt.inline"),
        setup=steps["setup"],
        verify=steps["verify"],
        cleanup=steps["cleanup"],
        assertions=assertions,
    )


def _step(item: Any, file: Path, where: str, kinds: Sequence[str]) -> Step:
    if not isinstance(item, dict) or len(item) != 1 or next(iter(item)) not in kinds:
        raise TaskFileWrong(
            f"{file}: {where} is {item!r:.80}; write one of {', '.join(kinds)} with its fields"
        )
    kind, value = next(iter(item.items()))
    fields = _mapping(value, file, f"{where}.{kind}", kind)
    if kind == "llmJudge":
        return Step(contains=_text(fields.get("contains"), file, f"{where}.llmJudge.contains"))
    timeout = fields.get("timeout", f"{STEP_TIMEOUT_S:g}s")
    number = str(timeout)[:-1]
    if not number.isdigit() or str(timeout)[-1:] not in _UNITS:
        raise TaskFileWrong(
            f"{file}: {where}.script.timeout is {timeout!r}; write seconds or minutes: 30s, 2m"
        )
    return Step(
        script=_text(fields.get("inline"), file, f"{where}.script.inline"),
        timeout_s=float(number) * _UNITS[str(timeout)[-1]],
    )


def _load(file: Path) -> Any:
    try:
        return yaml.safe_load(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise TaskFileWrong(f"{file}: cannot be read as YAML: {' '.join(str(error).split())}") from None


def _mapping(value: Any, file: Path, where: str, kind: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise TaskFileWrong(
            f"{file}: {where} is {value!r:.80}; write fields: {', '.join(sorted(_FIELDS[kind]))}"
        )
    for name in value:
        if name not in _FIELDS[kind]:
            raise TaskFileWrong(
                f"{file}: {where} has the unknown field {name!r}; known are {', '.join(sorted(_FIELDS[kind]))}"
            )
    return value


def _list(value: Any, file: Path, where: str) -> list[Any]:
    if not isinstance(value, list):
        raise TaskFileWrong(f"{file}: {where} is {value!r:.80}; write a list")
    return value


def _text(value: Any, file: Path, where: str) -> str:
    if not isinstance(value, str) or not value.strip():
        raise TaskFileWrong(f"{file}: {where} is {value!r:.80}; write a text (in quotes, if it is a number)")
    return value


def _labels(value: Any, file: Path, where: str) -> dict[str, str]:
    if not isinstance(value, dict):
        raise TaskFileWrong(f"{file}: {where} is {value!r:.80}; write labels: name: value")
    return {str(name): _text(each, file, f"{where}.{name}") for name, each in value.items()}


def _count(limits: Mapping[str, Any], field: str, file: Path, where: str) -> int:
    value = limits.get(field)
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise TaskFileWrong(f"{file}: {where}.assertions.{field} is {value!r}; write a number from 1 on")
    return value
