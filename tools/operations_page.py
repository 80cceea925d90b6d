"""Build the page docs/operations.md from the registry: each operation with its arguments, result, permission and samples.

The meaning of a result's field is the comment beside it in the class of the result. Notes on an area as a whole are in
tools/operations_notes.md. A fact that many operations share is at the head of the page. tools/gen_docs.py writes it.
"""

from __future__ import annotations

import ast
import inspect
import io
import re
import textwrap
import tokenize
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, Final, get_args

from pydantic import BaseModel
from pydanube_admin.engine.declaration import Argument
from pydanube_admin.engine.models import Change, Effect, ListRequest, SortedListRequest
from pydanube_admin.engine.operation import Operation
from pydanube_admin.engine.permission import FREE, OF_ANOTHER, OWN
from pydanube_admin.registry import OPERATIONS
from pydanube_mcp.profiles import BY_SET_ONLY

from tools.tables import json_text, table

ROOT: Final = Path(__file__).resolve().parent.parent
NOTES: Final = ROOT / "tools" / "operations_notes.md"
EFFECTS: Final = {
    Effect.READ: "reads",
    Effect.CREATE: "creates",
    Effect.CHANGE: "changes",
    Effect.DESTROY: "destroys",
}

# Arguments of lists, described once
OF_LISTS: Final = frozenset(SortedListRequest.model_fields)
#: fields that the head of the page explains: of every change, of every list, of answers of several brokers
OF_RESULTS: Final = frozenset({*Change.model_fields, "as_of", "not_seen"})

#: the meaning of a topic argument, which the head of the page has
(_OF_TOPIC,) = (each.help for each in OPERATIONS["topics.describe"].arguments if each.name == "topic")


def page() -> str:
    """Return the page."""
    head, notes = _notes()
    shared = [each for each in OPERATIONS["topics.list"].arguments if each.name in OF_LISTS]
    assert len(shared) == len(OF_LISTS)
    parts = [head.replace("{arguments of lists}\n", _arguments(shared)).replace("{index}\n", _index())]
    shown: dict[type[BaseModel], str] = {}
    for group in dict.fromkeys(operation.group for operation in OPERATIONS.values()):
        parts.append(f"## {group}\n")
        if group in notes:
            parts.append(notes.pop(group))
        said: dict[str, str] = {}  # meanings of fields, once an area, with the operation that has them
        parts += [_operation(each, shown, said) for each in OPERATIONS.values() if each.group == group]
    assert not notes, f"{NOTES.name}: there is no group {', '.join(notes)}"
    return "\n".join(parts)


def _notes() -> tuple[str, dict[str, str]]:
    """Return the head of the page, and the notes on each group."""
    head, *sections = re.split(r"^## (?=\w+$)", NOTES.read_text(encoding="utf-8"), flags=re.MULTILINE)
    pairs = (section.split("\n", 1) for section in sections)
    return head.split("-->\n", 1)[1].strip() + "\n", {group: text.strip() + "\n" for group, text in pairs}


def _index() -> str:
    groups: dict[str, list[str]] = {}
    for operation in OPERATIONS.values():
        link = f"[`{operation.verb}`](#{operation.name.replace('.', '')})"
        groups.setdefault(operation.group, []).append(link)
    return table(
        ("area", "operations"), [(f"[{name}](#{name})", " ".join(verbs)) for name, verbs in groups.items()]
    )


def _operation(operation: Operation, shown: dict[type[BaseModel], str], said: dict[str, str]) -> str:
    parts = [f"### {operation.name}\n\n{operation.summary}\n\n{', '.join(_facts(operation))}.\n"]
    own = [each for each in operation.arguments if each.name not in OF_LISTS or each.required]
    of_lists = [f"`{each.name}`" for each in operation.arguments if each not in own]
    if issubclass(operation.request, ListRequest) and of_lists:
        some = "the arguments of lists" if len(of_lists) == len(OF_LISTS) else ", ".join(of_lists)
        parts.append(f"Takes {some}.\n")
    else:
        own = list(operation.arguments)
    if own:
        parts.append(_arguments(own))
    if operation.later_arguments:
        parts.append(f"Still to come: {', '.join(f'`{name}`' for name in operation.later_arguments)}.\n")
    lines = [f"{operation.command_line(each.arguments):<60} # {each.note}" for each in operation.examples]
    parts.append("```sh\n" + "\n".join(lines) + "\n```\n")
    parts.append(_result(operation, shown, said))
    return "\n".join(parts)


def _facts(operation: Operation) -> Iterator[str]:
    yield f"`{operation.tool}`"
    yield EFFECTS[operation.effect]
    if operation.name in FREE:
        yield "no permission"
    elif operation.name in OF_ANOTHER:
        yield "the permission of the call inside"
    elif operation.name in OWN:
        yield f"`{operation.permission}` for those of others"
    else:
        yield f"`{operation.permission}`"
    if operation.group in BY_SET_ONLY:
        yield "tool set"
    elif not operation.default_profile:
        yield "full"
    if operation.effect is Effect.DESTROY and operation.planned:
        yield "plan"
    if operation.reversible:
        yield "undo"
    if operation.long_running:
        yield "detach"


def _arguments(arguments: Iterable[Argument]) -> str:
    """Return the list of arguments. Required names of the things that the call is about need no line of their own."""
    lines, names = [], []
    for each in arguments:
        kind = _kind(each)
        if kind == "required" and each.help in (_OF_TOPIC, "Its name"):
            names.append(f"`{each.name}`")
            continue
        meaning = "" if each.help == _OF_TOPIC else f": {each.help}"
        lines.append(f"- `{each.name}`{f' ({kind})' if kind else ''}{meaning}\n")
    needed = f"Requires {' and '.join(names)}.\n" if names else ""
    return needed + ("\n" if needed and lines else "") + "".join(lines)


def _kind(argument: Argument) -> str:
    """Return type, bounds and default of an argument; a string is not named."""
    words = " or ".join(f"`{choice}`" for choice in argument.choices)
    if not words and argument.type.value != "string":
        words = argument.type.value
    if argument.minimum is not None or argument.maximum is not None:
        low = "" if argument.minimum is None else f"from {argument.minimum}"
        high = "" if argument.maximum is None else f"to {argument.maximum}"
        words = " ".join(filter(None, (words, low, high)))
    default = "" if argument.default in (None, "") else f"`{json_text(argument.default)}`"
    return ", ".join(filter(None, ("required" if argument.required else "", words, default)))


def _result(operation: Operation, shown: dict[type[BaseModel], str], said: dict[str, str]) -> str:
    """Return the fields of a result with their types, then their meanings, or links to those that are in `said`."""
    model, schema = operation.result, operation.output_schema
    if model in shown:
        return f"Result: as of [{shown[model]}](#{shown[model].replace('.', '')}).\n"
    shown[model] = operation.name
    properties: Mapping[str, Any] = schema["properties"]
    word, meanings = "Result", {}
    if "items" in properties and "next_page" in properties:
        word = "Items"
        own = [name for name in properties if name not in _list_fields()]
        (item,) = _models(model.model_fields["items"].annotation)
        beside = {name: properties[name] for name in own}
        meanings = dict(_meanings(item, properties["items"]["items"]["properties"]))
        fields = _fields(properties["items"]["items"])
        if beside:
            fields += f". Beside the items: {_fields({'properties': beside})}"
            meanings |= _meanings(model, beside)
    else:
        fields, meanings = _fields(schema), dict(_meanings(model, properties))
    lines: list[str] = []
    earlier: dict[str, list[str]] = {}
    for name, meaning in meanings.items():
        line = f"- `{name}`: {meaning}"
        if line in said:
            earlier.setdefault(said[line], []).append(f"`{name}`")
        else:
            lines.append(line)
            said[line] = operation.name
    lines += [
        f"- {', '.join(names)}: as of [{first}](#{first.replace('.', '')})"
        for first, names in earlier.items()
    ]
    text = f"{word}: {fields}.\n" if fields else f"{word}: the fields of every change.\n"
    return text + ("\n" + "\n".join(lines) + "\n" if lines else "")


@cache
def _list_fields() -> frozenset[str]:
    return frozenset(OPERATIONS["topics.list"].output_schema["properties"])


def _fields(schema: Mapping[str, Any], depth: int = 0) -> str:
    properties: Mapping[str, Any] = schema["properties"]
    return ", ".join(
        f"`{name}`{_type(field, depth)}"
        for name, field in properties.items()
        if name not in OF_RESULTS
        and not (name.endswith("_reason") and name.removesuffix("_reason") in properties)
    )


def _type(field: Mapping[str, Any], depth: int) -> str:
    """Return what a reader has to know of a field's type: its words, whether it may be null, its fields, or that it is a list."""
    if "enum" in field:
        words = " or ".join(f"`{json_text(word)}`" for word in field["enum"] if word is not None)
        return f"{'?' if None in field['enum'] else ''} ({words})"
    kinds = field.get("type", "any")
    names = [kinds] if isinstance(kinds, str) else list(kinds)
    is_list = "array" in names
    mark = ("[]" if is_list else "") + ("?" if "null" in names else "")
    inner = field.get("items", {}) if is_list else field
    if "properties" in inner and depth < 1:
        return f"{mark} {{{_fields(inner, depth + 1)}}}"
    return mark


def _models(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for each in get_args(annotation) for model in _models(each)]


def _meanings(
    model: type[BaseModel], properties: Mapping[str, Any], above: str = ""
) -> Iterator[tuple[str, str]]:
    """Yield (field, meaning) of the fields that have a comment, those of objects inside as `outer.inner`."""
    said = {name: text for each in reversed(model.__mro__) for name, text in _comments(each).items()}
    inside = {field.alias or name: name for name, field in model.model_fields.items()}
    for name in properties:
        if name in OF_RESULTS:
            continue
        if inside.get(name, name) in said:
            yield f"{above}{name}", said[inside.get(name, name)]
        field = model.model_fields.get(inside.get(name, name))
        inner = properties[name].get("items", properties[name])
        if not above and field is not None and "properties" in inner:
            for one in _models(field.annotation):
                yield from _meanings(one, inner["properties"], f"{name}.")


@cache
def _comments(model: type) -> dict[str, str]:
    """Return the comments of a class's fields: those behind the field, on any of its lines."""
    if not issubclass(model, BaseModel) or not model.__module__.startswith("pydanube_"):
        return {}
    try:
        text = textwrap.dedent(inspect.getsource(model))
    except OSError:  # Page[Item] has no text of its own
        return {}
    behind = {
        token.start[0]: token.string.lstrip("# ")
        for token in tokenize.generate_tokens(io.StringIO(text).readline)
        if token.type == tokenize.COMMENT and not token.line.lstrip().startswith("#")
    }
    (body,) = ast.parse(text).body
    assert isinstance(body, ast.ClassDef)
    found = {}
    for line in body.body:
        if isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name):
            said = [
                behind[at] for at in range(line.lineno, (line.end_lineno or line.lineno) + 1) if at in behind
            ]
            if said:
                found[line.target.id] = " ".join(said).replace("None", "null").replace("False", "false")
    return found
