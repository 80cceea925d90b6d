"""The declared facts of operations that a command line needs, without the code that carries them out.

tools/gen_docs.py (`make docs`) writes `declarations.json` beside this module from the registry. Reading it
takes two milliseconds. Importing the registry would add half a second to the start of a command that makes
one call.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pydanube_core.errors import InvalidArgument
from pydanube_core.units import parse_bytes, parse_duration_s

FILE: Final = Path(__file__).with_name("declarations.json")


class ArgumentType(StrEnum):
    STRING = "string"
    INTEGER = "integer"
    BOOLEAN = "boolean"
    OBJECT = "object"  # values by name: `name=value,name=value` on a command line


class ValueType(StrEnum):
    """The values of an object argument."""

    COUNT = "count"  # integers, with the units of settings. Null removes one
    TEXT = "text"
    ARGUMENT = "argument"  # of the operation that the argument `operation` names


@dataclass(frozen=True, slots=True, kw_only=True)
class Argument:
    """One argument as a command line shows it."""

    name: str  # as in JSON: dispatch_strategy
    flag: str  # --dispatch-strategy
    type: ArgumentType
    values: ValueType | None = None  # of an object
    required: bool
    # Required names and ids, in the order of `Declared.arguments`. Other required arguments are flags
    positional: bool
    default: Any  # None: leave it out of the call
    choices: tuple[str, ...]
    minimum: int | None
    maximum: int | None
    help: str


@dataclass(frozen=True, slots=True)
class Example:
    """An example call, and its purpose."""

    arguments: Mapping[str, Any]
    note: str


class Declared:
    """Base of `Operation` and `Declaration`: the words of the command line, and calls as lines to paste."""

    __slots__ = ()

    if TYPE_CHECKING:  # fields, or properties, of the classes below it

        @property
        def name(self) -> str: ...
        @property
        def tool(self) -> str: ...
        @property
        def summary(self) -> str: ...
        @property
        def arguments(self) -> tuple[Argument, ...]: ...
        @property
        def examples(self) -> tuple[Example, ...]: ...
        @property
        def reads(self) -> bool: ...
        @property
        def planned(self) -> bool: ...
        @property
        def long_running(self) -> bool: ...
        @property
        def followed(self) -> bool: ...
        @property
        def takes_why(self) -> bool: ...
        @property
        def text_argument(self) -> str | None: ...
        @property
        def condition(self) -> str | None: ...
        @property
        def damage(self) -> tuple[str, ...]: ...

    @property
    def group(self) -> str:
        return self.name.partition(".")[0]

    @property
    def verb(self) -> str:
        return self.name.partition(".")[2]

    @property
    def words(self) -> tuple[str, str]:
        """The words of the command line: `("dead-letters", "list")`."""
        return self.group.replace("_", "-"), self.verb.replace("_", "-")

    def command_line(self, arguments: Mapping[str, Any]) -> str:
        """Return the command to paste for this call."""
        words = ["danube", *self.words]
        flags: list[str] = []
        for argument in self.arguments:
            value = arguments.get(argument.name)
            if value is None:
                continue
            if argument.positional:
                words.append(shlex.quote(str(value)))
            elif argument.type is ArgumentType.OBJECT:
                pairs = pairs_of(value, argument, arguments)
                flags += [argument.flag, shlex.quote(pairs)] if pairs or argument.required else []
            elif argument.type is ArgumentType.BOOLEAN:
                flags += [argument.flag] if value else []
            else:
                flags += [argument.flag, shlex.quote(str(value))]
        return " ".join([*words, *flags])

    def apply_call(self, arguments: Mapping[str, Any], plan_token: str, why: str) -> dict[str, Any]:
        """Return the entry of an error's `next` that applies a plan."""
        step = self.next_call({**arguments, "plan_token": plan_token}, why)
        return step | {"command": f"{self.command_line(arguments)} --plan-token {plan_token}"}

    def next_call(self, arguments: Mapping[str, Any], why: str) -> dict[str, Any]:
        """Return an entry of an error's `next`."""
        return {
            "operation": self.name,
            "tool": self.tool,
            "command": self.command_line(arguments),
            "arguments": dict(arguments),
            "why": why,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Declaration(Declared):
    """One operation, as in the file. The fields are those of `Operation`."""

    name: str
    tool: str
    summary: str
    reads: bool
    planned: bool
    long_running: bool
    followed: bool
    takes_why: bool
    text_argument: str | None
    condition: str | None
    damage: tuple[str, ...]
    arguments: tuple[Argument, ...]
    examples: tuple[Example, ...]


@cache
def declarations() -> Mapping[str, Declaration]:
    """Return the declarations of all operations, by name."""
    return {line["name"]: _read(line) for line in json.loads(FILE.read_text(encoding="utf-8"))}


def file_text(operations: Iterable[Declared]) -> str:
    """Return the file's text: one operation a line, so that changes of two operations merge."""
    lines = [json.dumps(asdict(_declaration(each)), ensure_ascii=False) for each in operations]
    return "[\n" + ",\n".join(lines) + "\n]\n"


def _declaration(operation: Declared) -> Declaration:
    return Declaration(**{name: getattr(operation, name) for name in Declaration.__dataclass_fields__})


def _read(line: dict[str, Any]) -> Declaration:
    arguments = [
        Argument(
            **{
                **each,
                "type": ArgumentType(each["type"]),
                "values": each["values"] and ValueType(each["values"]),
                "choices": tuple(each["choices"]),
            }
        )
        for each in line["arguments"]
    ]
    return Declaration(
        **{
            **line,
            "damage": tuple(line["damage"]),
            "arguments": tuple(arguments),
            "examples": tuple(Example(**each) for each in line["examples"]),
        }
    )


def parse_object(texts: Iterable[str], argument: Argument, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the value of an object argument from the words of a command line or a form.

    Each text is a JSON object, or `name=value` pairs with commas between them. A comma that no `name=` follows belongs
    to the value before it.

    Args:
        given: the other arguments of the call. `operation` names the operation whose arguments these are.

    Raises:
        InvalidArgument: a text is neither, or a value is of another type.
    """
    types = _value_types(argument, given)
    found: dict[str, Any] = {}
    for text in texts:
        if text.lstrip().startswith("{"):
            try:
                found |= json.loads(text)
            except ValueError as error:
                raise InvalidArgument(
                    f"{argument.flag} {text!r} is not a JSON object: {error}", field=argument.name, value=text
                ) from error
            continue
        pairs: list[str] = []
        for part in text.split(",") if text.strip() else ():
            if pairs and "=" not in part:
                pairs[-1] += f",{part}"
            else:
                pairs.append(part)
        for pair in pairs:
            name, separator, value = (part.strip() for part in pair.partition("="))
            if not separator or not name:
                raise InvalidArgument(
                    f"{argument.flag} {pair!r}: write name=value, such as {_sample(argument)}, or a JSON object",
                    field=argument.name,
                    value=pair,
                )
            try:
                found[name] = types(name)(value)
            except ValueError as error:
                raise InvalidArgument(
                    f"{argument.flag} {name}={value}: {error}", field=f"{argument.name}.{name}", value=value
                ) from error
    return found


def pairs_of(value: Mapping[str, Any], argument: Argument, given: Mapping[str, Any]) -> str:
    """Return the text that `parse_object` reads as `value`: pairs where they suffice, else JSON."""
    pairs = ",".join(f"{name}={_shown(each)}" for name, each in value.items())
    try:
        if parse_object([pairs], argument, given) == value:
            return pairs
    except InvalidArgument:
        pass
    return json.dumps(value, ensure_ascii=False)


def _shown(value: Any) -> str:
    match value:
        case None:
            return "none"
        case bool():
            return str(value).lower()
        case _:
            return str(value)


def _sample(argument: Argument) -> str:
    return "max_publish_rate=1000" if argument.values is ValueType.COUNT else "name=text"


Reader = Callable[[str], Any]


def _value_types(argument: Argument, given: Mapping[str, Any]) -> Callable[[str], Reader]:
    """Return how the value of a name is read. An unknown name is a text: the broker refuses it, and names similar ones."""
    match argument.values:
        case ValueType.COUNT:
            return lambda name: lambda text: count_of(name, text)
        case ValueType.ARGUMENT:
            inner = declarations().get(str(given.get("operation")))
            types = {each.name: each.type for each in inner.arguments} if inner else {}
            return lambda name: lambda text: _argument_of(types.get(name), name, text)
        case _:
            return lambda name: str


def _argument_of(type_: ArgumentType | None, name: str, text: str) -> Any:
    match type_:
        case ArgumentType.INTEGER:
            return count_of(name, text)
        case ArgumentType.BOOLEAN:
            return truth_of(text)
        case ArgumentType.OBJECT:
            raise ValueError(f"{name} is an object itself. Write all arguments as one JSON object")
        case _:
            return text


def truth_of(text: str) -> bool:
    """Return a truth value from `true`, `yes`, `false` or `no`. Raises `ValueError`."""
    try:
        return {"true": True, "yes": True, "false": False, "no": False}[text.strip().casefold()]
    except KeyError:
        raise ValueError("write true or false") from None


def count_of(name: str, text: str) -> int | str | None:
    """Return an integer, or None from `none`. Names of sizes and of seconds take the units of settings.

    `durability`, the one policy that is no count, stays a text.

    Raises:
        ValueError: it is none of them.
    """
    plain = text.strip()
    if plain in ("none", "null"):
        return None
    if name == "durability":
        return plain
    if plain.removeprefix("-").isdecimal():
        return int(plain)
    try:
        if "bytes" in name or name.endswith("_size"):
            return parse_bytes(plain, field=name)
        if name.endswith("_s") and not name.endswith("_per_s"):
            seconds = parse_duration_s(plain, field=name)
            if seconds == int(seconds):
                return int(seconds)
            raise ValueError("write whole seconds")
    except InvalidArgument as error:
        raise ValueError(error.message.removeprefix(f"{name}: ")) from error
    raise ValueError("write a whole number, or none")
