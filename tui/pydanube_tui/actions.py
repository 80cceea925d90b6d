"""The one table of what can be done: keys, help, palette and the documentation's page of keys are made of it.

An action is a piece of the console's own doing (go, sort, copy), which `console` knows by its id, or an operation of
the cluster, which is called with the arguments of the row it is done to: `filled` from it, `asked` of the person.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from pydanube_admin.engine.effect import Effect
from pydanube_admin.registry import OPERATIONS
from pydanube_core.errors import InvalidArgument

from pydanube_tui.views import VIEWS


@dataclass(frozen=True, slots=True, kw_only=True)
class Action:
    """One thing that can be done.

    Attributes:
        id: as in key maps: `go.topics`, `subscriptions.seek`.
        keys: as written: `/`, `enter`, `ctrl+d`, `L`.
        views: where it is; () everywhere.
        group: the heading it stands under in the help.
        operation: of the cluster; None: the console's own.
        asked: arguments that the person is asked for even where they could be left out.
        filled: argument -> field of the row, where the names differ.
        fixed: arguments that are always these.
        gathers: an argument that takes a list of one field of all marked rows: (argument, field).
    """

    id: str
    keys: tuple[str, ...]
    title: str
    group: str
    help: str
    views: tuple[str, ...] = ()
    operation: str | None = None
    asked: tuple[str, ...] = ()
    filled: Mapping[str, str] = field(default_factory=dict)
    fixed: Mapping[str, object] = field(default_factory=dict)
    gathers: tuple[str, str] | None = None

    @property
    def changes(self) -> bool:
        """Whether it needs `--allow-writes`."""
        return self.operation is not None and OPERATIONS[self.operation].effect is not Effect.READ

    def within(self, view: str) -> bool:
        """Whether it is there in that view."""
        return not self.views or view in self.views


GO, TABLE, ROW, SCREEN, CHANGE = "Go", "Table", "Row", "Screen", "Change (--allow-writes)"


def _own(id: str, keys: str, title: str, group: str, help: str, *views: str) -> Action:
    return Action(id=id, keys=tuple(keys.split()), title=title, group=group, help=help, views=views)


_OWN: Final = (
    _own(
        "go.command",
        ":",
        "go anywhere",
        GO,
        "type a view and what of: topics, topic orders, lag, cluster prod",
    ),
    _own(
        "go.back", "escape", "back", GO, "close what is open, clear the filter, or return to the view before"
    ),
    _own("go.last", "-", "last view", GO, "to the view before and back, as cd - does"),
    _own("go.earlier", "[", "earlier", GO, "back in the history of views"),
    _own("go.later", "]", "later", GO, "forth in the history of views"),
    _own("row.enter", "enter", "open", ROW, "the detail of the row; on a finding: carry out its next call"),
    _own("row.json", "y", "json", ROW, "the whole row as JSON"),
    _own(
        "row.copy", "c", "copy", ROW, "copy the row's name; says what was copied, and keeps it in a file too"
    ),
    _own("row.copy_json", "ctrl+j", "copy json", ROW, "copy the row as JSON"),
    _own(
        "row.mark",
        "space",
        "mark",
        ROW,
        "mark the row; a change is then planned for all marked rows together",
    ),
    _own("row.mark_all", "ctrl+a", "mark all", ROW, "mark every row in the filter, or none"),
    _own(
        "table.filter",
        "/",
        "filter",
        TABLE,
        "narrow: text, /regex/, ~fuzzy, !not, lag:>1k, status:stuck, age:>5m",
    ),
    _own(
        "table.sort",
        "o",
        "sort",
        TABLE,
        "sort by the next column; its capital letter sorts by a column at once",
    ),
    _own("table.reverse", "v", "reverse", TABLE, "turn the order round"),
    _own("table.columns", "t", "columns", TABLE, "choose and order the columns; remembered for each view"),
    _own("table.export", "e", "export", TABLE, "the rows in the filter as CSV or JSON into a file"),
    _own("screen.help", "? f1", "help", SCREEN, "explain what is on the screen and every key"),
    _own("screen.palette", "ctrl+p", "palette", SCREEN, "find any action or view by its name"),
    _own("screen.refresh", "r", "refresh", SCREEN, "ask the cluster now"),
    _own("screen.pause", "p", "pause", SCREEN, "stop refreshing, and go on"),
    _own("screen.faster", "<", "faster", SCREEN, "refresh twice as often"),
    _own("screen.slower", ">", "slower", SCREEN, "refresh half as often"),
    _own("screen.theme", "f2", "theme", SCREEN, "the next theme: dark, light, contrast, colour-blind, ansi"),
    _own("screen.save", "f3", "picture", SCREEN, "the screen as SVG and text into files"),
    _own("screen.quit", "q ctrl+q", "quit", SCREEN, "leave the console"),
)
_MORE: Final[tuple[Action, ...]] = ()


def _go() -> Iterator[Action]:
    """The digits go to views, in their order; the others are reached by `:` and the palette."""
    free = [view for view in VIEWS.values() if not view.takes]
    for number, view in enumerate(free):
        keys = (str((number + 1) % 10),) if number < 10 else ()
        yield Action(id=f"go.{view.name}", keys=keys, title=view.title.lower(), group=GO, help=view.summary)


_OPERATIONS: Final[tuple[Action, ...]] = ()

ACTIONS: Final[dict[str, Action]] = {action.id: action for action in (*_OWN, *_MORE, *_go(), *_OPERATIONS)}
assert len(ACTIONS) == len(_OWN) + len(_MORE) + sum(1 for _ in _go()) + len(_OPERATIONS)


def keyed(changes: Mapping[str, Sequence[str]]) -> dict[str, Action]:
    """The table with other keys.

    Raises:
        InvalidArgument: an action that is not there, or two that would have the same key in one view.
    """
    for id in changes:
        if id not in ACTIONS:
            raise InvalidArgument(f"keys: there is no action {id!r}; ? names them", field="keys", value=id)
    table = {
        id: replace(action, keys=tuple(changes[id])) if id in changes else action
        for id, action in ACTIONS.items()
    }
    for view in VIEWS:
        _check(view, table)
    return table


def _check(view: str, table: Mapping[str, Action]) -> None:
    taken: dict[str, str] = {
        column.key: f"sort by {column.name}" for column in VIEWS[view].columns if column.key
    }
    for action in table.values():
        if not action.within(view):
            continue
        for key in action.keys:
            if key in taken:
                raise InvalidArgument(
                    f"keys: {key!r} is both {taken[key]} and {action.id} in {view}; give one of them another key",
                    field="keys",
                    value=key,
                )
            taken[key] = action.id


def read_keys(path: str) -> dict[str, Action]:
    """The table with the keys of a TOML file: `[keys]`, then `"table.sort" = "s"` or a list.

    Raises:
        InvalidArgument: the file cannot be read, or as `keyed`.
    """
    try:
        with open(path, "rb") as file:
            tree = tomllib.load(file)
    except OSError as error:
        raise InvalidArgument(f"--keys {path}: {error.strerror}", field="keys", value=path) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InvalidArgument(f"--keys {path}: this is not TOML: {error}", field="keys", value=path) from None
    section = tree.get("keys")
    if not isinstance(section, dict) or set(tree) != {"keys"}:
        raise InvalidArgument(
            f'--keys {path}: write [keys], then "table.sort" = "s"', field="keys", value=path
        )
    changes: dict[str, list[str]] = {}
    for id, given in section.items():
        keys = [given] if isinstance(given, str) else given
        if not isinstance(keys, list) or not all(isinstance(key, str) and key for key in keys):
            raise InvalidArgument(f"--keys {path}: {id}: a key is a text", field="keys", value=id)
        changes[id] = keys
    return keyed(changes)


def by_key(table: Mapping[str, Action], view: str) -> dict[str, Action]:
    """Key -> action in a view."""
    return {key: action for action in table.values() if action.within(view) for key in action.keys}
