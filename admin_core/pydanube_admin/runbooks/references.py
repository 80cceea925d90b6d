"""References in braces: what they lead to, and texts and arguments with them put in."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Any, Final

_REFERENCE: Final = re.compile(r"\{([a-z_]+(?:\.[A-Za-z0-9_*]+)*)\}")


class _Missing:
    def __bool__(self) -> bool:
        return False


MISSING: Final = _Missing()


def find(path: str, known: Mapping[str, Any]) -> Any:
    """Return the value that `step.items.0.name` leads to, or MISSING."""
    value: Any = known
    for word in path.split("."):
        if isinstance(value, Mapping) and word in value:
            value = value[word]
        elif isinstance(value, list) and word.isdigit() and int(word) < len(value):
            value = value[int(word)]
        else:
            return MISSING
    return value


def spread(path: str, result: Any) -> list[Any]:
    """Every value at a path in which `*` stands for each item of a list."""
    values = [result]
    for word in path.split("."):
        found: list[Any] = []
        for value in values:
            if word == "*" and isinstance(value, list):
                found += value
            elif isinstance(value, Mapping) and word in value:
                found.append(value[word])
        values = found
    return values


def fill(text: str, known: Mapping[str, Any]) -> str:
    """The text with its references put in; one that leads nowhere stays as it is, so that people see its name."""

    def put(match: re.Match[str]) -> str:
        value = find(match[1], known)
        return match[0] if value is MISSING or value is None else str(value)

    return _REFERENCE.sub(put, text)


def fill_arguments(arguments: Mapping[str, Any], known: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of a call; what leads nowhere is left out."""
    filled: dict[str, Any] = {}
    for name, value in arguments.items():
        if not isinstance(value, str):
            filled[name] = value
            continue
        whole = _REFERENCE.fullmatch(value)
        if whole is not None:
            found = find(whole[1], known)
            if found is not MISSING and found is not None:
                filled[name] = found
        elif all(find(path, known) not in (MISSING, None) for path in _REFERENCE.findall(value)):
            filled[name] = fill(value, known)
    return filled


def named(text: str, kept: Collection[str] = ()) -> str:
    """The text, to be read: a reference that leads nowhere yet as what it will be, `{item.topic}` as `<topic>`.

    `kept`: parameters of a skill, which says of them how they are written.
    """

    def name(match: re.Match[str]) -> str:
        return match[0] if match[1] in kept else f"<{match[1].rpartition('.')[2]}>"

    return _REFERENCE.sub(name, text)
