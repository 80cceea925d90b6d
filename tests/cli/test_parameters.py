"""The parser of a command's words, and its help."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from pydanube_cli.parameters import HelpWanted, argument, help_text, option, parse
from pydanube_core.errors import InvalidArgument


def declared(
    topic: Annotated[str, argument(metavar="TOPIC", help="A topic.")],
    *,
    count: Annotated[int | None, option("-c", "--count", "N", "How many.", min=1, max=9)] = None,
    key: Annotated[list[str] | None, option("--key", "KEY", "Keys.")] = None,
    file: Annotated[Path | None, option("-f", "--file", "FILE", "A file.")] = None,
    sure: Annotated[bool, option("--sure/--no-sure", help="Whether.")] = False,
    kind: Annotated[Literal["a", "b"], option("--kind", help="Which.")] = "a",
) -> None: ...


PARAMETERS = list(inspect.signature(declared, eval_str=True).parameters.values())
USUAL: dict[str, Any] = {"count": None, "key": None, "file": None, "sure": False, "kind": "a"}


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ("t", {}),
        ("t --count 3", {"count": 3}),
        ("--count=3 t", {"count": 3}),
        ("t -c3", {"count": 3}),
        ("t -c 3 --count 4", {"count": 4}),
        ("t --key x --key -y", {"key": ["x", "-y"]}),
        ("t -f -", {"file": Path("-")}),
        ("t --sure --no-sure", {"sure": False}),
        ("--kind b -- t", {"kind": "b"}),
    ],
)
def test_words_are_read_as_other_commands_read_them(words: str, found: dict[str, Any]) -> None:
    assert parse(PARAMETERS, words.split()) == {"topic": "t", **USUAL, **found}


def test_an_id_without_its_option_is_answered_with_the_option() -> None:
    def command(*, broker_id: Annotated[str | None, option("--broker-id", help="Which.")] = None) -> None: ...

    parameters = list(inspect.signature(command, eval_str=True).parameters.values())
    with pytest.raises(InvalidArgument, match=r"too many: 17; did you mean --broker-id 17\?"):
        parse(parameters, ["17"])
    with pytest.raises(InvalidArgument, match=r"too many: 17 18$"):
        parse(parameters, ["17", "18"])


def test_what_follows_two_dashes_is_no_option() -> None:
    assert parse(PARAMETERS, ["--", "--count"])["topic"] == "--count"
    assert parse(PARAMETERS, ["-"])["topic"] == "-"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("", "the argument TOPIC is missing"),
        ("t u", "there is an argument too many: u"),
        ("t --count", "the option --count needs a value: N"),
        ("t --count x", "--count must be an integer, not 'x'"),
        ("t --count 0", "--count must be 1 or more, not '0'"),
        ("t --count 10", "--count must be 9 or less, not '10'"),
        ("t --kind c", "--kind must be one of a, b, not 'c'"),
        ("t --sure=yes", "the option --sure takes no value"),
        ("t --cuont 1", "there is no option --cuont; did you mean '--count'?"),
        ("t -x", "there is no option -x"),
    ],
)
def test_other_words_are_refused_with_what_is_wrong(words: str, message: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        parse(PARAMETERS, words.split())
    assert caught.value.message == message


@pytest.mark.parametrize("words", ["--help", "-h", "t --help", "--count 1 -h"])
def test_help_is_wanted_before_anything_is_missing(words: str) -> None:
    with pytest.raises(HelpWanted):
        parse(PARAMETERS, words.split())


def test_the_value_of_an_option_is_no_wish_for_help() -> None:
    assert parse(PARAMETERS, ["t", "--key", "--help"])["key"] == ["--help"]


def test_help_shows_each_parameter_its_bounds_and_its_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    shown = help_text("danube read", "Read.", PARAMETERS, ["danube read t"])
    assert (
        shown
        == """\
Usage: danube read [OPTIONS] TOPIC

  Read.

Arguments:
  TOPIC  A topic. [required]

Options:
  -c, --count N       How many. [1 to 9]
  --key KEY           Keys.
  -f, --file FILE     A file.
  --sure / --no-sure  Whether.
  --kind a|b          Which. [default: a]
  -h, --help          Show this message and exit.

Examples:
  danube read t
"""
    )
