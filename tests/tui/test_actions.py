"""The one table of actions: every key has help, none is there twice, and whoever changes it is told what is wrong."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydanube_core.errors import InvalidArgument
from pydanube_tui.actions import ACTIONS, by_key, keyed, read_keys
from pydanube_tui.bars import footer, help_lines
from pydanube_tui.cluster import Cluster
from pydanube_tui.console import Console
from pydanube_tui.views import VIEWS, place


def test_the_table_as_it_stands_has_no_key_twice() -> None:
    keyed({})


@pytest.mark.parametrize("view", VIEWS)
def test_help_of_every_view_names_every_key(view: str) -> None:
    told = "\n".join("".join(text for text, _ in spans) for spans in help_lines(VIEWS[view], ACTIONS, 1_000))
    for key, action in by_key(ACTIONS, view).items():
        assert key in told
        assert action.help in told
        assert action.help


def test_help_goes_on_below_its_text_and_not_at_the_edge() -> None:
    lines = ["".join(text for text, _ in spans) for spans in help_lines(VIEWS["topics"], ACTIONS, 80)]
    at = next(number for number, each in enumerate(lines) if each.split()[1:2] == ["overview"])
    assert lines[at + 1].startswith(" " * 34)
    assert lines[at + 1].strip()
    assert [each for each in lines[at:] if len(each) > 80] == []


def test_every_action_is_carried_out_by_somebody() -> None:
    app = Console([Cluster(name="x", admin_url="http://127.0.0.1:1", broker_url="http://127.0.0.1:1")])
    own = app.own_actions
    for action in ACTIONS.values():
        goes = action.id.startswith("go.") and action.id.removeprefix("go.") in VIEWS
        assert (action.id in own) + (action.operation is not None) + goes == 1, action.id
    assert set(own) <= set(ACTIONS)


def test_a_key_given_twice_names_both_actions(tmp_path: Path) -> None:
    path = tmp_path / "keys.toml"
    path.write_text('[keys]\n"row.json" = "c"\n')
    with pytest.raises(InvalidArgument, match=r"'c' is both row.json and row.copy"):
        read_keys(str(path))
    path.write_text('[keys]\n"row.json" = "L"\n')
    with pytest.raises(InvalidArgument, match=r"'L' is both sort by lag and row.json in"):
        read_keys(str(path))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("keys = 3", "write \\[keys\\]"),
        ("[keys", "not TOML"),
        ('[keys]\n"no.such" = "x"', "no action 'no.such'"),
        ('[keys]\n"row.json" = 3', "a key is a text"),
    ],
)
def test_a_key_map_that_cannot_be_read_says_why(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "keys.toml"
    path.write_text(text)
    with pytest.raises(InvalidArgument, match=says):
        read_keys(str(path))


def test_a_key_map_moves_an_action(tmp_path: Path) -> None:
    path = tmp_path / "keys.toml"
    path.write_text('[keys]\n"table.filter" = ["f4", "/"]\n')
    assert by_key(read_keys(str(path)), "topics")["f4"].id == "table.filter"


def test_words_find_views_by_name_alias_and_argument() -> None:
    assert place(["lag"]).view == "subscriptions"
    assert place(["topic", "orders"]).arguments == {"topic": "orders"}
    with pytest.raises(InvalidArgument, match="Did you mean topics"):
        place(["topcs"])
    with pytest.raises(InvalidArgument, match="write subscription TOPIC SUBSCRIPTION"):
        place(["subscription", "orders"])
    with pytest.raises(InvalidArgument, match="takes nothing, not 'x'"):
        place(["overview", "x"])


def test_the_line_of_keys_is_as_wide_as_the_screen_with_a_blank_after_the_counts() -> None:
    actions = [action for action in ACTIONS.values() if action.keys]
    for cells in range(40, 200):
        shown = "".join(text for text, _ in footer(actions, "12 of 345", cells))
        assert (len(shown), shown[-11:]) == (cells, " 12 of 345 ")
