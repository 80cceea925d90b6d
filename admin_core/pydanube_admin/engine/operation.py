"""The declaration of an operation: made once, by a decorator on its handler, and rendered by every face.

An operation has a name, a typed request and result, and the facts that a caller needs before calling it: its
effect, the permission it needs, whether it can be undone. It carries its handler too, which only the executor
calls. Faces read the rest. A `Call` is one operation with checked arguments. Handlers of one area name
operations of another by `next_call` and `known` when all are declared, so that no module imports in a circle.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar, get_args, get_type_hints

from pydanube_admin.engine.declaration import Argument, ArgumentType, Declared, Example, ValueType
from pydanube_admin.engine.forecast import Done, Forecast, Undo
from pydanube_admin.engine.models import Change, Effect, Place, Request, Result
from pydanube_admin.engine.schema import input_schema, output_schema
from pydanube_admin.wording.guides import GUIDES

# Carries an operation out: takes the Context and the operation's request, returns its result. Context is not
# named here, because its module imports this one.
Handler = Callable[[Any, Any], Awaitable[Result]]
H = TypeVar("H", bound=Handler)
Forecaster = Callable[[Any, Any], Awaitable[Forecast]]
# Prepares the undo of a change from the Context, the request and the change's traces. It changes nothing yet,
# and refuses if a later change prevents the undo.
Undoer = Callable[[Any, Any, Done], Awaitable[Undo]]


# A model reads each word again with every turn.
_PLAN_ARGUMENTS: Final = {
    "plan_only": {"type": "boolean", "description": "Only show the plan"},
    "plan_token": {"type": "string", "description": "Of the plan, works once"},
}
_LONG_ARGUMENTS: Final = {
    "detach": {"type": "boolean", "description": "Answer with its task_id, and go on"},
}
MAX_WHY_CHARS: Final = 300
_WHY_ARGUMENTS: Final = {
    "why": {"type": "string", "maxLength": MAX_WHY_CHARS, "description": "A sentence for the audit"},
}
_OF_EVERY_CALL: Final = frozenset({*_PLAN_ARGUMENTS, *_LONG_ARGUMENTS, *_WHY_ARGUMENTS})
# They carry out another operation, which may be a long one.
READ_ANY: Final = "operations.read"
APPLY: Final = "plans.apply"
_FOR_OTHERS: Final = frozenset({READ_ANY, APPLY})


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation(Declared):
    """One operation, as it is declared.

    Its `handler` carries it out. A change also has a `forecast` of its effect and an `undo`.
    `later_arguments` maps arguments of the interface that do not exist yet to the piece of work that brings
    them: they are in no schema, and passing one is an error that names that work.
    """

    name: str  # topics.list: group.verb
    tool: str  # list_topics
    title: str
    effect: Effect
    permission: str  # the permission that a role must grant
    summary: str  # one or two sentences for people and models alike
    request: type[Request]
    result: type[Result]
    handler: Handler
    examples: tuple[Example, ...]
    # Forecasts a change. None for reads, and for operations that make plans
    forecast: Forecaster | None = None
    undo: Undoer | None = None  # None: it cannot be undone
    at: Place = Place.OWNER
    undo_at: Place | None = None  # None: as `at`
    default_profile: bool = False  # also in the MCP profile `default`
    plans_itself: bool = False  # of the operations on plans: they are carried out without a plan of their own
    may_destroy: bool = False  # depending on its arguments, as the forecast states
    required_flags: tuple[str, ...] = ()  # required, but neither a name nor an id
    text_argument: str | None = None  # a long text, which the command line also takes by --file
    ends: bool = False  # it replaces or ends something of others, though nothing stored goes
    idempotent: bool = True  # the same call again, token and all, has no further effect
    long_running: bool = False  # may take minutes: it is a task, which shows how far it is
    followed: bool = False  # its work continues after the answer, whose `task_id` names that work
    resumable: bool = False  # if interrupted and started again, it has the same result
    condition: str | None = None  # field of the result: false makes the command end with 6
    damage: tuple[str, ...] = ()  # fields of the result: one that is not empty makes the command end with 5
    later_arguments: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        assert self.name.count(".") == 1, f"an operation is named group.verb, not {self.name!r}"
        assert (self.forecast is None) == (self.effect is Effect.READ or self.plans_itself), (
            "the effects of a change can be computed, a read has none"
        )
        assert self.undo is None or self.forecast is not None, "the change that is undone had a plan"
        if self.planned:
            assert issubclass(self.result, Change), f"{self.name}: the result of a change names its call"
        assert not set(self.later_arguments) & set(self.request.model_fields)
        assert self.text_argument is None or self.text_argument in self.required_flags
        assert self.condition is None or self.condition in self.result.model_fields
        assert set(self.damage) <= set(self.result.model_fields)
        assert self.long_running or not self.resumable
        assert not self.followed or "task_id" in self.result.model_fields
        assert not (self.resumable and self.effect is Effect.DESTROY), (
            "a destructive change is done as it was shown"
        )
        assert not (self.resumable and self.reversible), "its undo image is kept for one life of the broker"

    @property
    def description(self) -> str:
        """The summary, and which other operation serves a neighbouring question."""
        guide = GUIDES.get(self.name)
        return self.summary if guide is None else f"{self.summary} {guide}"

    @property
    def can_destroy(self) -> bool:
        """Whether some call of it deletes something."""
        return self.effect is Effect.DESTROY or self.may_destroy

    @property
    def reversible(self) -> bool | None:
        """Whether it can be undone, or None for reads."""
        return None if self.effect is Effect.READ else self.undo is not None

    def destroys(self, forecast: Forecast) -> bool:
        """Return whether the call of a forecast deletes something."""
        destroys = (forecast.effect or self.effect) is Effect.DESTROY
        assert self.can_destroy or not destroys, f"{self.name} is declared without may_destroy"
        return destroys

    def can_undo(self, forecast: Forecast) -> bool:
        """Return whether the call of a forecast can be undone."""
        return self.undo is not None and forecast.reversible is not False

    @property
    def reads(self) -> bool:
        """Whether it changes nothing, whatever its arguments are."""
        return self.effect is Effect.READ

    @property
    def planned(self) -> bool:
        """Whether it takes `plan_only` and `plan_token`."""
        return self.forecast is not None

    @property
    def takes_why(self) -> bool:
        """Whether it takes `why`: a sentence of the caller for plans and the audit."""
        return self.effect is not Effect.READ

    @property
    def detachable(self) -> bool:
        """Whether it takes `detach`: to answer with its task, and continue after the caller has gone."""
        return self.long_running or self.name in _FOR_OTHERS

    @property
    def input_schema(self) -> dict[str, Any]:
        """The schema of the arguments, with those that every call of its kind takes.

        They are `plan_only` and `plan_token` for a change, `detach` for a long operation, and `why` for
        everything but reads.
        """
        schema = input_schema(self.request)
        more: dict[str, Any] = {
            **(_PLAN_ARGUMENTS if self.planned else {}),
            **(_LONG_ARGUMENTS if self.long_running else {}),
            **(_WHY_ARGUMENTS if self.takes_why else {}),
        }
        return {**schema, "properties": {**schema["properties"], **more}} if more else schema

    @property
    def request_names(self) -> frozenset[str]:
        """The names of its own arguments."""
        fields = self.request.model_fields.items()
        return frozenset(field.alias or name for name, field in fields)

    @property
    def identity(self) -> tuple[str, ...]:
        """The fields that identify the items of a list, empty if the result is no list."""
        items = self.result.model_fields.get("items")
        found: tuple[str, ...] = (
            () if items is None else getattr(get_args(items.annotation)[0], "identity", ())
        )
        return found

    @property
    def output_schema(self) -> dict[str, Any]:
        return output_schema(self.result)

    @property
    def arguments(self) -> tuple[Argument, ...]:
        """The arguments in order: the operation's own first, then `limit`, `page`, `filter` of a list."""
        schema = self.input_schema
        required = set(schema.get("required", ()))
        return tuple(
            _argument(
                name,
                field_schema,
                required=name in required,
                positional=name in required and name not in self.required_flags,
            )
            for name, field_schema in schema["properties"].items()
            if name in self.request_names or name not in _OF_EVERY_CALL
        )


def operation(
    name: str,
    *,
    effect: Effect,
    forecast: Forecaster | None = None,
    undo: Undoer | None = None,
    tool: str | None = None,
    title: str | None = None,
    permission: str | None = None,
    **facts: Any,
) -> Callable[[H], H]:
    """Declare the operation that the decorated function carries out.

    Request and result types are the function's. By default the tool has the function's name, the title is
    that name as words, and the permission follows from the operation's name and effect. A change has a
    `forecast`, and it is reversible if it has an `undo`.

    Args:
        facts: the other fields of `Operation`.
    """
    group, _, verb = name.partition(".")

    def declare(handler: H) -> H:
        hints = get_type_hints(handler)
        called = tool or handler.__name__
        declared = Operation(
            name=name,
            tool=called,
            title=title or called.replace("_", " ").capitalize(),
            effect=effect,
            permission=permission or f"{group}:{'read' if effect is Effect.READ else verb}",
            request=hints["request"],
            result=hints["return"],
            handler=handler,
            forecast=forecast,
            undo=undo,
            **facts,
        )
        assert name not in DECLARED, f"{name} is declared twice"
        DECLARED[name] = declared
        return handler

    return declare


# By name, in the order in which their modules were imported. Complete once `pydanube_admin.registry` is
# imported.
DECLARED: Final[dict[str, Operation]] = {}


def _argument(name: str, schema: Mapping[str, Any], *, required: bool, positional: bool) -> Argument:
    return Argument(
        name=name,
        flag="--" + name.replace("_", "-"),
        type=ArgumentType(schema["type"]),
        values=_values(schema),
        required=required,
        positional=positional,
        default=schema.get("default"),
        choices=tuple(schema.get("enum", ())),
        minimum=schema.get("minimum"),
        maximum=schema.get("maximum"),
        help=schema.get("description", ""),
    )


def _values(schema: Mapping[str, Any]) -> ValueType | None:
    if schema["type"] != ArgumentType.OBJECT:
        return None
    values = schema["additionalProperties"]
    if values is True:
        return ValueType.ARGUMENT
    return ValueType.COUNT if "integer" in values["type"] else ValueType.TEXT


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """A checked call.

    `arguments` are as given, without those about plans and tasks. `request` holds the typed ones.
    """

    operation: Operation
    request: Request
    arguments: Mapping[str, Any]
    plan_only: bool = False
    plan_token: str = ""
    detach: bool = False  # answer with the task, and continue after the caller has gone
    why: str = ""  # in the caller's words, for the audit


def is_known(operation: str) -> bool:
    """Whether this version has the operation."""
    return operation in DECLARED


def next_call(operation: str, arguments: Mapping[str, Any], why: str) -> dict[str, Any]:
    """Return an entry of an error's `next`, for an operation that exists."""
    return DECLARED[operation].next_call(arguments, why)


def known(operation: str) -> Operation:
    """Return the operation of that name, which exists."""
    return DECLARED[operation]


def every() -> list[Operation]:
    """Return all operations, by name."""
    return [DECLARED[name] for name in sorted(DECLARED)]
