"""`danube __complete`: runs at a press of the tab key. Prints nothing without candidates, and never fails.

    danube __complete bash LINE WORDBREAKS     the line up to the cursor, as bash has it
    danube __complete zsh WORD…                the words after `danube`, the last of which is being typed
    danube __complete fish WORD…

The first line of the answer is the shell's next step: `words` (one a line follows, for zsh and fish with a
tab and its description), `files` or `folders`.

`wanted` decides from the table of words which words may stand at the cursor, without the broker. If these are
names (topics, subscriptions …), it returns their kind, and the broker is queried.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from pydanube_cli.completion.names import names_of

TEXT: Final = "text"  # any text
FILES: Final = "files"
FOLDERS: Final = "folders"
# Kinds of names that the broker lists
NAMES: Final = ("topics", "subscriptions", "namespaces", "subjects", "plans", "tasks", "brokers")

# A leaf's flags, each with the kind of its value: null for no value, a list for one of those words, else a
# kind.
Table = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """The choices for one word. `kind`: names to query, or FILES or FOLDERS. `glued`: put before each."""

    begin: str = ""
    words: Mapping[str, str]  # each with its description
    kind: str | None = None
    glued: str = ""  # `--topic=`, where the value follows in the same word
    topic: str | None = None  # that was given before, for subscriptions
    common: Mapping[str, str]  # flags with the broker's address


def load() -> Table:
    """The table of this version."""
    text = Path(__file__).with_name("words.json").read_text(encoding="utf-8")
    table: Table = json.loads(text)
    return table


def split_line(line: str) -> list[str]:
    """Split a command line up to the cursor as a shell does. The last word is being typed.

    Open quotes are closed at the end.
    """
    import shlex  # bash alone gives a line

    for closing in ("", "'", '"'):
        with suppress(ValueError):  # of a quote that is still open
            # The dot makes `shlex` keep an empty last word
            *words, last = shlex.split(f"{line}.{closing}")
            return [*words, last.removesuffix(".")]
    return [line]


def wanted(table: Table, words: Sequence[str]) -> Wanted:
    """Return the choices for the last of `words`, which follow the name of the program."""
    *before, begin = words or [""]
    common: Table = table["common"]
    leaf: Table | None = None
    level: Table = table["words"]
    given: dict[str, str] = {}
    positionals: list[str] = []
    pending: str | None = None  # a flag whose value comes next
    ended = False  # by --
    for word in before:
        if pending is not None:
            given[pending], pending = word, None
            continue
        if word == "--" and not ended:
            ended = True
        elif word.startswith("-") and not ended and word != "-":
            name, equals, value = word.partition("=")
            if equals:
                given[name] = value
            elif _after(leaf, common, name) is not None:
                pending = name
            else:
                given[name] = ""
        elif leaf is None:
            if word == "admin" and level is table["words"]:
                continue
            child = level.get(word)
            if child is None:
                return Wanted(begin=begin, words={}, common=given)
            if "flags" in child:
                leaf = child
            else:
                level = child["verbs"]
        else:
            positionals.append(word)
    topic = _topic(leaf, positionals, given)
    if pending is not None:
        return _of_kind(_after(leaf, common, pending), begin, "", topic, given)
    if begin.startswith("-") and not ended:
        name, equals, value = begin.partition("=")
        if equals:
            return _of_kind(_after(leaf, common, name), value, f"{name}=", topic, given)
        flags = {**({} if leaf is None else leaf["flags"]), **common, "--help": None}
        if leaf is None and level is table["words"]:
            flags["--version"] = None
        return Wanted(begin=begin, words=_starting(dict.fromkeys(flags, ""), begin), common=given)
    if leaf is None:
        about = {word: str(child.get("about", "")) for word, child in level.items()}
        return Wanted(begin=begin, words=_starting(about, begin), common=given)
    kinds = leaf["positional"]
    kind = kinds[len(positionals)] if len(positionals) < len(kinds) else TEXT
    return _of_kind(kind, begin, "", topic, given)


def _after(leaf: Table | None, common: Table, flag: str) -> Any:
    """Return the choices after a flag. None: it takes no value, or is not in the table."""
    if leaf is not None and flag in leaf["flags"]:
        return leaf["flags"][flag]
    return common.get(flag)


def _of_kind(kind: Any, begin: str, glued: str, topic: str | None, given: Mapping[str, str]) -> Wanted:
    if isinstance(kind, list):
        words = _starting(dict.fromkeys(kind, ""), begin)
        return Wanted(begin=begin, words=words, glued=glued, common=given)
    asked = kind if kind in (*NAMES, FILES, FOLDERS) else None
    return Wanted(begin=begin, words={}, kind=asked, glued=glued, topic=topic, common=given)


def _topic(leaf: Table | None, positionals: Sequence[str], given: Mapping[str, str]) -> str | None:
    if "--topic" in given:
        return given["--topic"]
    if leaf is None:
        return None
    pairs = zip(leaf["positional"], positionals, strict=False)
    return next((value for kind, value in pairs if kind == "topics"), None)


def _starting(words: Mapping[str, str], begin: str) -> dict[str, str]:
    return {word: about for word, about in words.items() if word.startswith(begin)}


def complete(shell: str, words: Sequence[str], env: Mapping[str, str]) -> list[str]:
    """Return the lines to print for the shell."""
    breaks = ""
    if shell == "bash":
        line, breaks = words
        words = split_line(line)[1:]
    found = wanted(load(), words)
    if found.kind in (FILES, FOLDERS):
        return [found.kind]
    candidates = dict(found.words)
    if found.kind is not None:
        candidates |= dict.fromkeys(_names(found, env), "")
    typed = found.glued + found.begin
    # bash replaces what stands behind the last of its break characters only
    cut = max((typed.rfind(mark) + 1 for mark in breaks), default=0)
    told = []
    for word, about in candidates.items():
        whole = (found.glued + word)[cut:]
        told.append(f"{whole}\t{about}" if about and shell != "bash" else whole)
    return ["words", *told]


def _names(found: Wanted, env: Mapping[str, str]) -> list[str]:
    # here, not above: most presses of the key need no broker
    from pydanube.addresses import admin_address
    from pydanube.principal import default_principal

    assert found.kind is not None
    admin, broker = found.common.get("--admin"), found.common.get("--broker")
    if admin is None and (name := found.common.get("--cluster")):
        from pydanube_cli.clusters import find_cluster

        cluster = find_cluster(name, env)
        admin, broker = cluster.admin, broker or cluster.broker
    url = admin_address(admin, broker, env)
    address = url.rpartition("://")[2].strip("/ ")
    principal = found.common.get("--as") or default_principal(env)
    return names_of(found.kind, found.begin, topic=found.topic, address=address, principal=principal)


def main(argv: Sequence[str]) -> int:
    """Entry of the hidden word."""
    with suppress(Exception):  # a message in the middle of a command line helps no user
        sys.stdout.write("".join(f"{line}\n" for line in complete(argv[0], argv[1:], os.environ)))
        sys.stdout.flush()
    return 0
