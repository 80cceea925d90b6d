"""The parameters of a command: their declarations, the parser of its words, and its help.

A parameter is an `inspect.Parameter` whose annotation is `Annotated[type, option(…)]` or `Annotated[type, argument(…)]`. The type
is `str`, `int`, `float`, `bool`, `Path`, an enum of texts or a `Literal`, each also with `| None`, or a `list` of one of them.

The parser is our own because the start of a command is its users' waiting time: typer and pydantic, which typer parses with, took
two thirds of it.
"""

from __future__ import annotations

import inspect
import shutil
import textwrap
import types
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import EnumType
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Union, get_args, get_origin

from pydanube_core.errors import InvalidArgument

HELP: Final = ("--help", "-h")
WIDEST: Final = 80
COLUMN: Final = 34  # of the descriptions, in characters
EMPTY: Final = inspect.Parameter.empty


class HelpWanted(Exception):
    """`--help` is among the words."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Info:
    """A declaration. Without `flags` it is a positional argument."""

    flags: tuple[str, ...] = ()  # of a truth value also `--x/--no-x`
    metavar: str | None = None
    help: str = ""
    min: int | None = None
    max: int | None = None
    hidden: bool = False


def option(
    *words: str,
    help: str = "",
    metavar: str | None = None,
    min: int | None = None,
    max: int | None = None,
    hidden: bool = False,
) -> Any:
    """Declare an option: its names, then its value and its help, by position or by keyword."""
    flags = tuple(word for word in words if word.startswith("-"))
    if by_position := words[len(flags) :]:
        metavar, help = by_position
    return Info(flags=flags, metavar=metavar, help=help, min=min, max=max, hidden=hidden)


def argument(
    *, help: str = "", metavar: str | None = None, min: int | None = None, max: int | None = None
) -> Any:
    """Declare a positional argument."""
    return Info(metavar=metavar, help=help, min=min, max=max)


@dataclass(frozen=True, slots=True)
class Word:
    """One parameter as the parser sees it."""

    name: str
    info: Info
    type: Any  # without None, and of a list that of its items
    many: bool
    default: Any

    @classmethod
    def of(cls, parameter: inspect.Parameter) -> Word:
        assert get_origin(parameter.annotation) is Annotated, parameter
        kind, *rest = get_args(parameter.annotation)
        if get_origin(kind) in (Union, types.UnionType):
            kind = next(each for each in get_args(kind) if each is not type(None))
        many = get_origin(kind) is list
        if many:
            (kind,) = get_args(kind)
        (info,) = (each for each in rest if isinstance(each, Info))
        return cls(parameter.name, info, kind, many, parameter.default)

    @property
    def flags(self) -> tuple[str, ...]:
        """The names that set it."""
        return tuple(flag.partition("/")[0] for flag in self.info.flags)

    @property
    def unset(self) -> tuple[str, ...]:
        """The names that set a truth value to false."""
        return tuple(found for flag in self.info.flags if (found := flag.partition("/")[2]))

    @property
    def positional(self) -> bool:
        return not self.info.flags

    @property
    def choices(self) -> tuple[str, ...]:
        if get_origin(self.type) is Literal:
            return tuple(map(str, get_args(self.type)))
        return tuple(self.type) if isinstance(self.type, EnumType) else ()

    @property
    def shown(self) -> str:
        """Its name in messages."""
        longest = max(self.flags, key=len, default=None)
        return longest or self.info.metavar or self.name.upper()

    @property
    def metavar(self) -> str:
        if self.positional:
            return self.shown
        if self.type is bool:
            return ""
        return self.info.metavar or "|".join(self.choices) or {int: "N", Path: "PATH"}.get(self.type, "TEXT")

    def value(self, text: str) -> Any:
        """Return the value of a text. Raises `InvalidArgument`."""
        if self.choices and text not in self.choices:
            raise self._refused(text, "one of " + ", ".join(self.choices))
        if self.type in (int, float):
            return self._number(text)
        if self.type is Path and not text:  # which `Path` takes for this folder
            raise self._refused(text, "a path")
        return self.type(text) if isinstance(self.type, type) else text

    def _number(self, text: str) -> int | float:
        try:
            number: int | float = self.type(text)
        except ValueError:
            raise self._refused(text, "an integer" if self.type is int else "a number") from None
        if self.info.min is not None and number < self.info.min:
            raise self._refused(text, f"{self.info.min} or more")
        if self.info.max is not None and number > self.info.max:
            raise self._refused(text, f"{self.info.max} or less")
        return number

    def _refused(self, text: str, wanted: str) -> InvalidArgument:
        field = self.shown.removeprefix("--").replace("-", "_").lower()
        return InvalidArgument(f"{self.shown} must be {wanted}, not {text!r}", field=field, value=text)


def parse(parameters: Sequence[inspect.Parameter], args: Sequence[str]) -> dict[str, Any]:
    """Return the values of all parameters by name.

    Options may stand anywhere before `--`. `--x=value`, `--x value`, `-x value` and `-xvalue` are the same. The last of several
    values counts, unless the option takes a list.

    Raises:
        HelpWanted: `--help` or `-h` is among the words.
        InvalidArgument: the words are not those of the command.
    """
    words = [Word.of(parameter) for parameter in parameters]
    by_flag = {flag: word for word in words for flag in (*word.flags, *word.unset)}
    given: dict[str, list[Any]] = {}
    loose: list[str] = []
    rest = iter(args)
    for arg in rest:
        if arg == "--":
            loose += rest
        elif not arg.startswith("-") or arg == "-":
            loose.append(arg)
        else:
            word, value = _option(arg, rest, by_flag)
            given.setdefault(word.name, []).append(value)
    places = [word for word in words if word.positional]
    for at, word in enumerate(places):
        taken = len(loose) if word.many and at == len(places) - 1 else 1
        given |= {word.name: [word.value(text) for text in loose[:taken]]} if loose else {}
        del loose[:taken]
    if loose:
        ids = [word.flags[0] for word in words if word.flags and word.flags[0].endswith("-id")]
        hint = f"; did you mean {ids[0]} {loose[0]}?" if len(ids) == len(loose) == 1 else ""
        raise InvalidArgument(f"there is an argument too many: {' '.join(loose)}{hint}", value=loose[0])
    values: dict[str, Any] = {}
    for word in words:
        if word.name in given:
            values[word.name] = given[word.name] if word.many else given[word.name][-1]
        elif word.default is EMPTY:
            what = "argument" if word.positional else "option"
            raise InvalidArgument(f"the {what} {word.shown} is missing", field=word.name)
        else:
            values[word.name] = word.default
    return values


def _option(arg: str, rest: Iterator[str], by_flag: dict[str, Word]) -> tuple[Word, Any]:
    """Return the option of a word, and its value, which may be the next word."""
    name, equals, value = arg.partition("=") if arg.startswith("--") else (arg[:2], arg[2:], arg[2:])
    if name in HELP and name not in by_flag:
        raise HelpWanted
    word = by_flag.get(name)
    if word is None:
        from pydanube_core.spelling import close_names, either

        close = close_names(name, [*by_flag, *HELP])
        hint = f"; did you mean {either(close)}?" if close else ""
        raise InvalidArgument(f"there is no option {name}{hint}", value=name, did_you_mean=close)
    if word.type is bool:
        if equals:
            raise InvalidArgument(f"the option {name} takes no value", field=word.name, value=value)
        return word, name not in word.unset
    if not equals:
        found = next(rest, None)
        if found is None:
            raise InvalidArgument(f"the option {name} needs a value: {word.metavar}", field=word.name)
        value = found
    return word, word.value(value)


def help_text(
    usage: str, summary: str, parameters: Sequence[inspect.Parameter], examples: Sequence[str]
) -> str:
    """Return the help of a command, for the width of the terminal."""
    width = min(WIDEST, shutil.get_terminal_size().columns)
    words = [word for word in map(Word.of, parameters) if not word.info.hidden]
    places = [word for word in words if word.positional]
    marks = [_mark(word) for word in places]
    lines = [" ".join(["Usage:", usage, "[OPTIONS]", *marks]), ""]
    for paragraph in summary.split("\n\n"):
        lines += [*_wrapped(paragraph, width), ""]
    if places:
        rows = [(word.metavar, _described(word)) for word in places]
        lines += ["Arguments:", *_rows(rows, width), ""]
    rows = [(_names(word), _described(word)) for word in words if not word.positional]
    lines += ["Options:", *_rows([*rows, ("-h, --help", "Show this message and exit.")], width)]
    return "\n".join([*lines, "", "Examples:", *(f"  {example}" for example in examples)]) + "\n"


def _mark(word: Word) -> str:
    mark = f"{word.metavar}…" if word.many else word.metavar
    return mark if word.default is EMPTY else f"[{mark}]"


def _wrapped(text: str, width: int) -> list[str]:
    return textwrap.wrap(
        " ".join(text.split()), width, initial_indent="  ", subsequent_indent="  ", break_on_hyphens=False
    )


def _names(word: Word) -> str:
    names = ", ".join(word.flags) + "".join(f" / {name}" for name in word.unset)
    return f"{names} {word.metavar}".strip()


def _described(word: Word) -> str:
    low, high = word.info.min, word.info.max
    parts = [word.info.help]
    if word.default is EMPTY:
        parts.append("[required]")
    elif word.default not in (None, False, "") and "[default" not in word.info.help:
        parts.append(f"[default: {word.default}]")
    if low is not None:
        parts.append(f"[{low} or more]" if high is None else f"[{low} to {high}]")
    elif high is not None:
        parts.append(f"[up to {high}]")
    return " ".join(filter(None, parts))


def _rows(rows: Sequence[tuple[str, str]], width: int) -> list[str]:
    """Return two columns. A name that is wider than its column stands on a line of its own."""
    column = min(COLUMN, 4 + max(len(name) for name, _ in rows))
    lines = []
    for name, text in rows:
        described = textwrap.wrap(text, max(20, width - column), break_on_hyphens=False)
        first = f"  {name}"
        if len(first) + 2 > column and described:
            lines.append(first)
            first = ""
        lines.append((first.ljust(column) + "".join(described[:1])).rstrip())
        lines += [" " * column + line for line in described[1:]]
    return lines
