"""The dialog before a change: its deletions and effects. Cancel has the focus. A dangerous one needs a typed name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from pydanube_admin.engine.declaration import Argument, ArgumentType, ValueType, parse_object, truth_of
from pydanube_admin.engine.models import Effect
from pydanube_admin.engine.operation import Operation
from pydanube_admin.wording.radius import radius_text, sums_of
from pydanube_core.errors import InvalidArgument
from rich.text import Text
from textual import events
from textual.app import ComposeResult
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.widgets import Button, Input, Static

from pydanube_tui.actions import Action
from pydanube_tui.dialogs import Dialog, Entry, Field
from pydanube_tui.page import Line, Tone, dim, fact, line
from pydanube_tui.text import clean, shown
from pydanube_tui.themes import Look
from pydanube_tui.views.records import plan_lines

MOST_TOGETHER: Final = 100  # rows that are planned together
MOST_NAMES: Final = 16_000  # characters of the topics of one plan
DIFFERENCES: Final = 100  # of a plan that are shown
OF_MANY: Final = frozenset({"cluster.rebalance", "brokers.unload"})  # they move topics of other clients
_NAMES: Final = ("subscription", "namespace", "subject", "topic", "broker_id", "id", "plan_id", "call_id")


def arguments_of(operation: Operation, action: Action, known: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of an operation that a row and its place give."""
    found: dict[str, Any] = {}
    for argument in operation.arguments:
        value: Any = known
        for step in action.filled.get(argument.name, argument.name).split("."):
            value = value.get(step) if isinstance(value, Mapping) else None
        filled = argument.name in action.filled
        if operation.effect is Effect.CREATE and argument.name in action.asked and not filled:
            continue  # a new object does not have the row's name
        wanted = argument.required or filled
        if wanted and value is not None and not isinstance(value, list | Mapping):
            found[argument.name] = value
    return found


def fields_of(operation: Operation, action: Action, found: Mapping[str, Any]) -> list[Field]:
    """Return the fields of the form: required arguments without a value, and those that the action always requests."""
    return [
        Field(
            name=argument.name,
            help=_help(argument),
            value=str(found.get(argument.name, "" if argument.default is None else argument.default)),
            required=argument.required,
        )
        for argument in operation.arguments
        if argument.name in action.asked or (argument.required and argument.name not in found)
    ]


def _help(argument: Argument) -> str:
    if argument.choices:
        return f"{argument.help}: {' or '.join(argument.choices)}"
    if argument.type is not ArgumentType.OBJECT:
        return argument.help
    return f"{argument.help}; NAME={'COUNT' if argument.values is ValueType.COUNT else 'TEXT'},…"


def typed(operation: Operation, values: Mapping[str, str]) -> dict[str, Any]:
    """Convert the texts of a form to the operation's types.

    Raises:
        InvalidArgument: one does not have its type.
    """
    arguments = {argument.name: argument for argument in operation.arguments}
    return {name: _typed(arguments[name], text) for name, text in values.items()}


def _typed(argument: Argument, text: str) -> Any:
    try:
        match argument.type:
            case ArgumentType.INTEGER:
                return int(text)
            case ArgumentType.BOOLEAN:
                return truth_of(text)
            case ArgumentType.OBJECT:
                return parse_object([text], argument, {})
            case _:
                return text if argument.name == "payload" else text.strip()
    except (ValueError, InvalidArgument):
        raise InvalidArgument(
            f"{argument.name}: {text!r} is none: {_help(argument)}", field=argument.name, value=text
        ) from None


def as_one(operation: Operation, calls: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    """Return the arguments of `plans.create` for one plan of several calls, None if they differ in more than topics."""
    rest, *others = ({name: value for name, value in each.items() if name != "topic"} for each in calls)
    topics = [str(each.get("topic", "")) for each in calls]
    names = ",".join(topics)
    same = operation.planned and all(topics) and all(each == rest for each in others)
    if len(calls) == 1 or not same or len(names) > MOST_NAMES or set(names) & set("*?[]"):
        return None
    return {"operation": operation.name, "topics": names, **({"arguments": rest} if rest else {})}


def name_to_type(plans: Sequence[Mapping[str, Any]]) -> str:
    """Return the word to type before a dangerous change: the name, the number of things, or the operation's verb."""
    if len(plans) > 1:
        return str(len(plans))
    arguments = plans[0]["arguments"]
    if "topics" in arguments:
        return str(len(arguments["topics"]))
    verb = plans[0]["operation"].rpartition(".")[2]
    return str(next((arguments[name] for name in _NAMES if arguments.get(name)), verb))


class Consent(Dialog[bool]):
    """Shows plans and requests consent. The result is True only if it is given explicitly."""

    def __init__(self, look: Look, plans: Sequence[Mapping[str, Any]]) -> None:
        count = len(plans) if len(plans) > 1 else len(plans[0]["arguments"].get("topics", (1,)))
        many = f"{count} changes" if count > 1 else "one change"
        super().__init__(look, f"The effects would be: {many}")
        self._plans = plans
        dangerous = any(plan["effect"] == "destroy" or plan["operation"] in OF_MANY for plan in plans)
        self._typed = name_to_type(plans) if dangerous else ""

    def compose(self) -> ComposeResult:
        """Put the plans, the name to type if one is needed, Cancel and Apply on the screen."""
        with Vertical():
            yield self.heading
            with VerticalScroll():
                yield Static(self.text(self._lines()))
            if self._typed:
                yield Static(Text(clean(f"type {self._typed} to go on")), classes="hint")
                yield Entry(id="typed", select_on_focus=False, compact=True)
            with Horizontal():
                yield Button("Cancel", id="cancel", compact=True)
                yield Button("Apply", id="apply", variant="error", compact=True, disabled=bool(self._typed))

    def _lines(self) -> list[Line]:
        if len(self._plans) > 1:
            total = sums_of([plan["blast_radius"] for plan in self._plans])
            told = (
                f" {plan['operation']} {shown(plan['arguments'])}: {radius_text(plan['blast_radius'])}"
                for plan in self._plans
            )
            return [fact("together", (radius_text(total), Tone.WARN)), *map(line, told)]
        plan = self._plans[0]
        differences = plan["diff"]
        lines = plan_lines(plan)
        for each in differences[:DIFFERENCES]:
            before, after = (shown(each.get(side)) for side in ("before", "after"))
            lines.append(line(dim(f"   {each['path']}  "), (before, Tone.BAD), " → ", (after, Tone.GOOD)))
        if len(differences) > DIFFERENCES:
            lines.append(line(dim(f"   and {len(differences) - DIFFERENCES} more differences")))
        return lines

    def on_mount(self) -> None:
        """Give Cancel the focus, so that Enter without reading changes nothing."""
        self.query_one("#cancel", Button).focus()

    def on_key(self, event: events.Key) -> None:
        """Move a letter that is typed elsewhere into the field for the name."""
        # With the focus, the field takes printable characters itself, so the others here are meant for it.
        field = next(iter(self.query(Input)), None)
        if field is not None and event.is_printable and event.character not in (None, " "):
            event.stop()
            field.focus()
            field.insert_text_at_cursor(str(event.character))

    def on_input_changed(self, event: Input.Changed) -> None:
        """Enable Apply when the name is typed."""
        self.query_one("#apply", Button).disabled = event.value != self._typed

    def on_input_submitted(self) -> None:
        """Move the focus from the name to Apply, once it may be pressed."""
        button = self.query_one("#apply", Button)
        if not button.disabled:
            button.focus()

    def on_button_pressed(self, event: Button.Pressed) -> None:
        """Close with True for Apply, with False for Cancel."""
        self.close(event.button.id == "apply")
