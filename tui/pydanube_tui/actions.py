"""The table of all actions. Keys, help, palette and the documentation's page of keys are made from it.

An action is one of the console itself (go, sort, copy), with the handler that `console` has for its id, or calls an
operation of the cluster, with arguments from the row under the cursor (`filled`) and from the person (`asked`).
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from pydanube_admin.engine.models import Effect
from pydanube_admin.registry import OPERATIONS
from pydanube_core.errors import InvalidArgument
from pydanube_core.failure_policy import POLICY_FIELDS

from pydanube_tui.view import View
from pydanube_tui.views import VIEWS


@dataclass(frozen=True, slots=True, kw_only=True)
class Action:
    """One action of the console.

    Attributes:
        id: as in key maps: `go.topics`, `subscriptions.seek`.
        keys: as written: `/`, `enter`, `ctrl+d`, `L`.
        views: where it is available. () everywhere.
        group: its heading in the help.
        operation: of the cluster. None: the console's own.
        asked: arguments that the form always contains, even if they could be left out.
        filled: argument -> field of the row, if the names differ.
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
    gathers: tuple[str, str] | None = None

    @property
    def changes(self) -> bool:
        """Whether the action changes something, and so needs `--allow-writes`."""
        return self.operation is not None and OPERATIONS[self.operation].effect is not Effect.READ

    def within(self, view: str) -> bool:
        """Return whether the action is available in that view."""
        return not self.views or view in self.views


# Each group, and in it: id (=operation, if its name differs) | keys | title | help | views, none: everywhere.
_TABLE: Final = """
Go
  go.command | : | go anywhere | type a view and its subject: topics, topic orders, lag, cluster prod
  go.back | escape | back | close the open dialog, clear the filter, or return to the view before
  go.last | - | last view | to the view before and back, as cd - does
  go.earlier | [ | earlier | back in the history of views
  go.later | ] | later | forth in the history of views
Row
  row.enter | enter | open | open the row. On a finding: make its next call
  row.json | y | json | the whole row as JSON
  row.copy | c | copy | copy the row's name, report the copied text, and keep it in a file too
  row.copy_json | ctrl+j | copy json | copy the row as JSON
  row.mark | space | mark | mark the row. A change is then planned for all marked rows together
  row.mark_all | ctrl+a | mark all | mark every row in the filter, or none
  row.messages | m | messages | read the topic by a reader of its own | overview topics topic subscriptions subscription clients
  row.dead_letters | d | dead letters | messages that the subscription gave up | subscriptions subscription
  row.objects | b | objects | objects of the topic in the cold tier | topics topic
  schemas.compare | d | diff | the version against the one before, or two marked ones | schema
  schemas.check | x | try a schema | check whether a new version would be compatible | schemas schema
  objects.verify | x | verify | read every object of the topic and check it | objects
  audit.verify | x | verify | check the chain of all records | audit
Table
  table.filter | / | filter | narrow: text, /regex/, ~fuzzy, !not, lag:>1k, status:stuck, age:>5m
  table.faults | ! | faults | only the rows that are not well, and back to all | topics subscriptions brokers connectors
  table.sort | o | sort | sort by the next column. Its capital letter sorts by a column directly
  table.reverse | v | reverse | turn the order round
  table.columns | t | columns | choose and order the columns. Remembered for each view
  table.export | e | export | write the rows in the filter to a file, as CSV or JSON
  messages.follow | f | follow | follow new messages, or stop. A stopped view loses nothing | messages
  messages.jump | w | jump | to offset:42, time:-15m, earliest, latest | messages
  messages.form | d | decoded/raw/hex | how payloads are shown | messages
Screen
  screen.help | ? f1 | help | explain the screen and every key
  screen.palette | ctrl+p | palette | find any action or view by its name
  screen.refresh | r | refresh | ask the cluster now
  screen.pause | p | pause | stop refreshing, or continue
  screen.faster | < | faster | refresh twice as often
  screen.slower | > | slower | refresh half as often
  screen.theme | f2 | theme | the next theme: dark, light, contrast, colour-blind, ansi
  screen.save | f3 | picture | the screen as SVG and text into files
  screen.quit | q ctrl+q | quit | leave the console
Change (--allow-writes)
  change.undo | ctrl+z | undo | take back the last change that was done here
  topics.create | n | new topic | make a topic | topics
  topics.set_policies | l | policies | limits and retention of the topic | topics topic
  topics.truncate | ctrl+t | truncate | delete messages before a position | topics topic
  topics.move | ctrl+y | move | hand the topic to another broker | topics topic
  topics.unload | ctrl+u | unload | let go of the topic and take it up again | topics topic
  topics.replay | ctrl+r | replay | copy a range into another topic | topics topic messages
  topics.delete | ctrl+d | delete | delete the topic with all it has | topics topic
  subscriptions.create | n | new subscription | make a subscription | subscriptions subscription
  subscriptions.seek | s | seek | go to offset:42, time:-15m, earliest or latest | subscriptions subscription
  subscriptions.skip | i | skip | leave out the next messages | subscriptions subscription
  subscriptions.purge | ctrl+x | purge | leave out all that is unread | subscriptions subscription
  subscriptions.set_failure_policy | l | failure policy | redeliveries, deadlines, dead letters | subscriptions subscription
  subscriptions.delete | ctrl+d | delete | delete the subscription and its cursor | subscriptions subscription
  messages.publish | n | new message | publish a message to the topic | messages
  messages.again=messages.publish | b | publish again | copy the message's payload and key into a new one, to be changed | messages
  namespaces.create | n | new namespace | make a namespace | namespaces
  namespaces.set_policies | l | policies | limits of all its topics | namespaces
  namespaces.delete | ctrl+d | delete | delete an empty namespace | namespaces
  brokers.unload | ctrl+u | unload | hand over the broker's topics | brokers
  brokers.activate | a | activate | let the broker take topics again | brokers
  cluster.rebalance | ctrl+b | rebalance | begin the moves that the load manager proposes | brokers
  schemas.register | n | new version | register a schema | schemas schema
  schemas.set_compatibility | l | compatibility | the compatibility of new versions | schemas schema
  schemas.delete_version | ctrl+d | delete version | delete a version | schema
  connectors.pause | i | pause connector | stop the connector after its batch | connectors connector
  connectors.resume | a | resume | let the connector go on | connectors connector
  connectors.restart | ctrl+r | restart | start the connector anew from its position | connectors connector
  connectors.delete | ctrl+d | delete | delete the declaration of the connector | connectors connector
  plans.discard | ctrl+d | discard | throw the plan away | plans plan
  changes.undo | u | undo | take the change back | audit change
  faces.freeze | z | freeze | allow only reads through the face of this record. This stops an assistant | audit change
  faces.thaw | a | thaw | lift the freeze of a face | audit change
  dead_letters.replay | a | put back | deliver the originals of the marked letters again | dead-letters
  dead_letters.drop=topics.truncate | ctrl+t | drop | delete the letters before a position | dead-letters
  consumers.disconnect | ctrl+d | disconnect consumer | end the consumer's session | clients
  producers.disconnect | ctrl+e | disconnect producer | end the producer's session | clients
  objects.flush | ctrl+f | flush | write the topic to the cold tier now | topic objects
  objects.compact | ctrl+k | compact | merge small objects of the topic | objects
"""
_ASKED: Final[Mapping[str, str]] = {
    "faces.freeze": "face until reason",
    "faces.thaw": "face",
    "topics.create": "topic partitions dispatch_strategy",
    "topics.move": "to_broker",
    "topics.replay": "from until",
    "subscriptions.create": "topic subscription type start",
    "subscriptions.seek": "to",
    "subscriptions.set_failure_policy": " ".join(field.name for field in POLICY_FIELDS if field.asked),
    "messages.publish": "payload key attributes",
    "messages.again": "topic payload key",
    "namespaces.create": "namespace policies",
    "schemas.check": "subject schema_type schema_definition",
    "schemas.register": "subject schema_type schema_definition",
}
_FILLED: Final[Mapping[str, Mapping[str, str]]] = {
    "subscriptions.create": {"topic": "topic"},
    "messages.again": {"topic": "topic", "payload": "untrusted.text", "key": "untrusted.key"},
    "schemas.register": {"subject": "subject"},
    "dead_letters.drop": {"topic": "dead_letter_topic"},
}
_GATHERS: Final = {"dead_letters.replay": ("offsets", "offset")}


def _actions() -> Iterator[Action]:
    """Return the actions. After `go.later` one for each view, the first ten with a digit as their key."""
    group = ""
    for text in _TABLE.strip().splitlines():
        if " | " not in text:
            group = text
            continue
        name, keys, title, help, views = (*(each.strip() for each in text.split(" | ")), "")[:5]
        id, _, operation = name.partition("=")
        yield Action(
            id=id,
            keys=tuple(keys.split()),
            title=title,
            group=group,
            help=help,
            views=tuple(views.split()),
            operation=next((each for each in (operation, id) if each in OPERATIONS), None),
            asked=tuple(_ASKED.get(id, "").split()),
            filled=_FILLED.get(id, {}),
            gathers=_GATHERS.get(id),
        )
        if id == "go.later":
            free = [view for view in VIEWS.values() if not view.takes]
            for at, view in enumerate(free, 1):
                digit = (str(at % 10),) if at <= 10 else ()
                yield Action(
                    id=f"go.{view.name}", keys=digit, title=view.title.lower(), group=group, help=view.summary
                )


ACTIONS: Final[dict[str, Action]] = {action.id: action for action in _actions()}


def keyed(changes: Mapping[str, Sequence[str]]) -> dict[str, Action]:
    """Return the table with other keys.

    Raises:
        InvalidArgument: an action does not exist, or two would have the same key in one view.
    """
    for id in changes:
        if id not in ACTIONS:
            raise _refused(f"keys: there is no action {id!r}; ? names them", id)
    table = {id: replace(action, keys=tuple(changes.get(id, action.keys))) for id, action in ACTIONS.items()}
    for view in VIEWS.values():
        _check(view, table)
    return table


def _refused(told: str, value: str) -> InvalidArgument:
    return InvalidArgument(told, field="keys", value=value)


def _check(view: View, table: Mapping[str, Action]) -> None:
    taken = {column.key: f"sort by {column.name}" for column in view.columns if column.key}
    for action in table.values():
        for key in action.keys if action.within(view.name) else ():
            if key in taken:
                both = f"both {taken[key]} and {action.id} in {view.name}"
                raise _refused(f"keys: {key!r} is {both}. Give one of them another key", key)
            taken[key] = action.id


def read_keys(path: str) -> dict[str, Action]:
    """Read the keys of a TOML file, `[keys]`, then `"table.sort" = "s"` or a list, and return the table with them.

    Raises:
        InvalidArgument: the file cannot be read, or as `keyed`.
    """
    try:
        with open(path, encoding="utf-8-sig") as file:
            tree = tomllib.loads(file.read())
    except OSError as error:
        raise _refused(f"--keys {path}: {error.strerror}", path) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise _refused(f"--keys {path}: this is not TOML: {error}", path) from None
    section = tree.get("keys")
    if not isinstance(section, dict) or set(tree) != {"keys"}:
        raise _refused(f'--keys {path}: write [keys], then "table.sort" = "s"', path)
    changes: dict[str, list[str]] = {}
    for id, given in section.items():
        keys = [given] if isinstance(given, str) else given
        if not isinstance(keys, list) or not all(isinstance(key, str) and key for key in keys):
            raise _refused(f"--keys {path}: {id}: a key is a text", id)
        changes[id] = keys
    return keyed(changes)


def by_key(table: Mapping[str, Action], view: str) -> dict[str, Action]:
    """Return key → action in a view."""
    return {key: action for action in table.values() if action.within(view) for key in action.keys}
