"""The table of words for `words.json`, worked out from the commands and the registry. Run by tools/gen_docs.py."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from pydanube_admin import runbooks
from pydanube_admin.registry import OPERATIONS
from pydanube_cli.command import Command, shared_parameters
from pydanube_cli.completion.press import FILES, FOLDERS, TEXT
from pydanube_cli.operations import command_of
from pydanube_cli.overview import ALIASES
from pydanube_cli.parameters import Word
from pydanube_cli.runbook import command_of_runbook

Leaf = tuple[str, str, str]  # module, attribute, summary

# Argument, as it is called -> the kind of name it takes.
NAMES_OF: Final = {
    "topic": "topics",
    "subscription": "subscriptions",
    "namespace": "namespaces",
    "subject": "subjects",
    "schema_subject": "subjects",
    "plan_id": "plans",
    "task_id": "tasks",
    "broker_id": "brokers",
    "broker": "brokers",
    "dead_letter_topic": "topics",
}
POSITIONS: Final = ["earliest", "latest", "offset:", "time:"]
# Arguments of the same name that are something else: what they name does not exist yet.
NEW_NAMES: Final = {
    ("topics.create", "topic"),
    ("subscriptions.create", "subscription"),
    ("namespaces.create", "namespace"),
}
POSITION_ARGUMENTS: Final = {
    ("consume", "start"),
    ("consume", "until"),
    ("subscriptions.seek", "to"),
    ("subscriptions.create", "start"),
    ("messages.peek", "from"),
    ("messages.search", "from"),
    ("messages.search", "until"),
    ("topics.replay", "from"),
    ("topics.replay", "until"),
    ("topics.truncate", "before"),
}
FOLDER_METAVARS: Final = {"DIR"}
FILE_METAVARS: Final = {"FILE", "PATH", "JSON|@FILE|-"}


def text(
    commands: Mapping[str, Leaf],
    groups: Mapping[str, Mapping[str, Leaf]],
    summaries: Mapping[str, str],
    command_at: Callable[[Leaf], Command],
) -> str:
    """`words.json`: one line for each command, so that two changes of different commands merge.

    Args:
        commands, groups, summaries: the tables of `pydanube_cli.main`, which imports what is named there.
        command_at: loads the command of a leaf.
    """
    words: dict[str, Any] = {}
    for word, leaf in commands.items():
        about = leaf[2]
        if word == "runbook":
            words[word] = {
                "about": about,
                "verbs": {
                    book.name: _leaf(command, f"runbook {book.name}", command.summary)
                    for book in runbooks.all().values()
                    for command in (command_of_runbook(book),)
                },
            }
            continue
        words[word] = _leaf(command_at(leaf), word, about)
    for group, verbs in groups.items():
        words[group] = {
            "about": summaries[group],
            "verbs": {
                verb: _leaf(command_at(leaf), f"{group} {verb}", leaf[2]) for verb, leaf in verbs.items()
            },
        }
    for operation in OPERATIONS.values():
        group, verb = operation.words
        of_group = words.setdefault(group, {"about": "", "verbs": {}})["verbs"]
        of_group[verb] = _leaf(command_of(operation), operation.name, operation.title)
    for (group, verb), (name, positional) in ALIASES.items():
        operation = OPERATIONS[name]
        command = command_of(operation, positional=positional)
        words[group]["verbs"][verb] = _leaf(command, name, operation.title)
    common = _flags(shared_parameters(), "")[1]
    return _written(words, common)


def _written(words: Mapping[str, Any], common: Mapping[str, Any]) -> str:
    lines = ["{", f' "common": {json.dumps(common)},', ' "words": {']
    of_words = []
    for word, body in words.items():
        if "flags" in body:
            of_words.append(f"  {json.dumps(word)}: {json.dumps(body, ensure_ascii=False)}")
            continue
        verbs = ",\n".join(
            f"   {json.dumps(verb)}: {json.dumps(leaf, ensure_ascii=False)}"
            for verb, leaf in body["verbs"].items()
        )
        about = json.dumps(body["about"], ensure_ascii=False)
        of_words.append(f'  {json.dumps(word)}: {{"about": {about}, "verbs": {{\n{verbs}\n  }}}}')
    return "\n".join([*lines, ",\n".join(of_words), " }", "}"])


def _leaf(command: Command, name: str, about: str) -> dict[str, Any]:
    positional, flags = _flags(command.parameters, name)
    return {"about": about, "positional": positional, "flags": flags}


def _flags(parameters: tuple[inspect.Parameter, ...], command: str) -> tuple[list[Any], dict[str, Any]]:
    positional: list[Any] = []
    flags: dict[str, Any] = {}
    for word in map(Word.of, parameters):
        name = word.name.removeprefix("arg_").removesuffix("_")
        takes = _takes(command, name, word)
        if word.positional:
            positional.append(takes)
        elif not word.info.hidden:
            flags |= dict.fromkeys((*word.flags, *word.unset), takes)
    return positional, flags


def _takes(command: str, name: str, word: Word) -> Any:
    kind, metavar = word.type, word.info.metavar
    if kind is bool:
        return None
    if word.choices:
        return list(word.choices)
    if (command, name) in POSITION_ARGUMENTS:
        return POSITIONS
    if command == "rpc" and name == "method":
        return sorted(OPERATIONS)
    if metavar in FOLDER_METAVARS:
        return FOLDERS
    if kind is Path or metavar in FILE_METAVARS or name == "option_file":
        return FILES
    if (command, name) in NEW_NAMES or kind is int or command.startswith(("report", "bench")):
        return TEXT
    return NAMES_OF.get(name, TEXT)
