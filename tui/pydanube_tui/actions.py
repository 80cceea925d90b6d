"""The one table of what can be done: keys, help, palette and the documentation's page of keys are made of it.

An action is a piece of the console's own doing (go, sort, copy), which `console` knows by its id, or an operation of
the cluster, which is called with the arguments of the row it is done to: `filled` from it, `asked` of the person.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

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
_WITH_TOPIC: Final = ("overview", "topics", "topic", "subscriptions", "subscription", "clients")
_MORE: Final = (
    _own("row.messages", "m", "messages", ROW, "read the topic by a reader of its own", *_WITH_TOPIC),
    _own(
        "row.dead_letters",
        "d",
        "dead letters",
        ROW,
        "what the subscription gave up",
        "subscriptions",
        "subscription",
    ),
    _own("row.objects", "b", "objects", ROW, "what the cold tier has of the topic", "topics", "topic"),
    _own("messages.follow", "f", "follow", TABLE, "read on, or stand: what stands loses nothing", "messages"),
    _own("messages.jump", "w", "jump", TABLE, "to offset:42, time:-15m, earliest, latest", "messages"),
    _own("messages.form", "d", "decoded/raw/hex", TABLE, "how payloads are shown", "messages"),
    _own(
        "schemas.compare",
        "d",
        "diff",
        ROW,
        "the version against the one before, or two marked ones",
        "schema",
    ),
    _own("change.undo", "ctrl+z", "undo", CHANGE, "take back the last change that was done here"),
)


def _go() -> Iterator[Action]:
    """The digits go to views, in their order; the others are reached by `:` and the palette."""
    free = [view for view in VIEWS.values() if not view.takes]
    for number, view in enumerate(free):
        keys = (str((number + 1) % 10),) if number < 10 else ()
        yield Action(id=f"go.{view.name}", keys=keys, title=view.title.lower(), group=GO, help=view.summary)


def _op(operation: str, keys: str, title: str, help: str, *views: str, **more: Any) -> Action:
    changes = OPERATIONS[operation].effect is not Effect.READ
    group = CHANGE if changes else ROW
    own = more.pop("id", operation)
    return Action(
        id=own,
        keys=tuple(keys.split()),
        title=title,
        group=group,
        help=help,
        views=views,
        operation=operation,
        **more,
    )


_SUBS: Final = ("subscriptions", "subscription")
_LETTER: Final = {"topic": "dead_letter_topic"}
_SAME_TOPIC: Final = {"topic": "topic"}
_SAME_SUBJECT: Final = {"subject": "subject"}
_AGAIN: Final = {"topic": "topic", "payload": "untrusted.text", "key": "untrusted.key"}
_POLICY: Final = ("max_redelivery_count", "ack_timeout_ms", "poison_policy", "dead_letter_topic")
_CREATED: Final = ("topic", "partitions", "dispatch_strategy")
_OPERATIONS: Final[tuple[Action, ...]] = (
    _op("topics.create", "n", "new topic", "make a topic", "topics", asked=_CREATED),
    _op("topics.set_policies", "l", "policies", "limits and retention of the topic", "topics", "topic"),
    _op("topics.truncate", "ctrl+t", "truncate", "delete messages before a position", "topics", "topic"),
    _op("topics.unload", "ctrl+u", "unload", "let go of the topic and take it up again", "topics", "topic"),
    _op(
        "topics.replay",
        "ctrl+r",
        "replay",
        "copy a range into another topic",
        "topics",
        "topic",
        "messages",
        asked=("from", "until"),
    ),
    _op("topics.delete", "ctrl+d", "delete", "delete the topic with all it has", "topics", "topic"),
    _op(
        "subscriptions.create",
        "n",
        "new subscription",
        "make a subscription",
        *_SUBS,
        asked=("topic", "subscription", "type", "start"),
        filled=_SAME_TOPIC,
    ),
    _op(
        "subscriptions.seek",
        "s",
        "seek",
        "go to offset:42, time:-15m, earliest or latest",
        *_SUBS,
        asked=("to",),
    ),
    _op("subscriptions.skip", "i", "skip", "leave out the next messages", *_SUBS),
    _op("subscriptions.purge", "ctrl+x", "purge", "leave out all that is unread", *_SUBS),
    _op(
        "subscriptions.set_failure_policy",
        "l",
        "failure policy",
        "redeliveries, deadlines, dead letters",
        *_SUBS,
        asked=_POLICY,
    ),
    _op("subscriptions.delete", "ctrl+d", "delete", "delete the subscription and its cursor", *_SUBS),
    _op(
        "messages.publish",
        "n",
        "new message",
        "publish a message to the topic",
        "messages",
        asked=("payload", "key", "attributes"),
    ),
    _op(
        "messages.publish",
        "b",
        "publish again",
        "copy the message into a new one, to be changed",
        "messages",
        id="messages.again",
        asked=("topic", "payload", "key"),
        filled=_AGAIN,
    ),
    _op(
        "namespaces.create",
        "n",
        "new namespace",
        "make a namespace",
        "namespaces",
        asked=("namespace", "policies"),
    ),
    _op("namespaces.set_policies", "l", "policies", "what holds for all its topics", "namespaces"),
    _op("namespaces.delete", "ctrl+d", "delete", "delete an empty namespace", "namespaces"),
    _op("brokers.unload", "ctrl+u", "unload", "hand over the broker's topics", "brokers"),
    _op("brokers.activate", "a", "activate", "let the broker take topics again", "brokers"),
    _op(
        "schemas.check",
        "x",
        "try a schema",
        "would a new version be compatible",
        "schemas",
        "schema",
        asked=("subject", "schema_type", "schema_definition"),
    ),
    _op(
        "schemas.register",
        "n",
        "new version",
        "register a schema",
        "schemas",
        "schema",
        asked=("subject", "schema_type", "schema_definition"),
        filled=_SAME_SUBJECT,
    ),
    _op(
        "schemas.set_compatibility", "l", "compatibility", "what a new version must keep", "schemas", "schema"
    ),
    _op("schemas.delete_version", "ctrl+d", "delete version", "delete a version", "schema"),
    _op("plans.discard", "ctrl+d", "discard", "throw the plan away", "plans", "plan"),
    _op("changes.undo", "u", "undo", "take the change back", "audit", "change"),
    _op(
        "dead_letters.replay",
        "a",
        "put back",
        "put the marked letters back where they came from",
        "dead-letters",
        gathers=("offsets", "offset"),
    ),
    _op(
        "topics.truncate",
        "ctrl+t",
        "drop",
        "delete the letters before a position",
        "dead-letters",
        id="dead_letters.drop",
        filled=_LETTER,
    ),
    _op("consumers.disconnect", "ctrl+d", "disconnect consumer", "end the consumer's session", "clients"),
    _op("producers.disconnect", "ctrl+e", "disconnect producer", "end the producer's session", "clients"),
    _op("objects.verify", "x", "verify", "read every object of the topic and check it", "objects"),
    _op("objects.flush", "ctrl+f", "flush", "write the topic to the cold tier now", "topic", "objects"),
    _op("objects.compact", "ctrl+k", "compact", "merge small objects of the topic", "objects"),
    _op("audit.verify", "x", "verify", "check the chain of all records", "audit"),
)

ACTIONS: Final[dict[str, Action]] = {action.id: action for action in (*_OWN, *_MORE, *_go(), *_OPERATIONS)}


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
