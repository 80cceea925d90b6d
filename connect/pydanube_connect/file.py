"""Read a connector's TOML file and check all of it before any connection is made.

    name = "orders-to-pg"
    connector = "postgres-sink"
    topic = "orders"

    [settings]
    dsn = "postgresql://app:${env:PG_PASSWORD}@db/shop"
    table = "orders"

    [delivery]
    on_error = "dead_letter"

Every error names the file, the key, the value and the remedy.
"""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Final, Literal, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator
from pydanube_core.connectors import MOST_PARTS
from pydanube_core.errors import ClusterError, InvalidArgument
from pydanube_core.names import TopicName, check_subscription
from pydanube_core.positions import Position
from pydanube_core.secrets import REDACTED, is_secret_name, without_secrets
from pydanube_core.spelling import close_names
from pydanube_core.units import parse_bytes, parse_duration_s

from pydanube_connect.connector import Connector, Sink
from pydanube_connect.installed import connector_class
from pydanube_connect.references import References

MOST_TOPICS: Final = 100
#: bytes (1 MiB), because no hand-written file is larger
MOST_FILE_BYTES: Final = 1 << 20
_SHOWN_CHARS: Final = 100

Duration = Annotated[float, BeforeValidator(lambda given: _units(parse_duration_s, given))]
Size = Annotated[int, BeforeValidator(lambda given: _units(parse_bytes, given))]


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class Delivery(_Section):
    """`[delivery]`: batches, retries and refused records."""

    on_error: Literal["stop", "dead_letter"] = Field(
        default="stop",
        description="a record that can never be written stops the connector, or becomes a dead letter",
    )
    batch_size: int = Field(default=1_000, ge=1, le=100_000, description="records of a batch at most")
    batch_bytes: Size = Field(
        default=16 << 20, ge=1, le=256 << 20, description="payload bytes of a batch. One record may be larger"
    )
    batch_age: Duration = Field(
        default=1.0, ge=0, le=3_600, description="a batch that is not full is written after this time"
    )
    retries: int = Field(
        default=10, ge=0, le=1_000_000, description="attempts after the first before the connector stops"
    )
    backoff_s: float = Field(
        default=1.0,
        gt=0,
        le=3_600,
        strict=False,
        description="bound of the first wait. Doubles up to a minute",
    )
    attempt_timeout: Duration = Field(
        default=120.0, gt=0, le=86_400, description="an attempt that takes longer has failed"
    )
    workers: int = Field(
        default=1,
        ge=1,
        le=MOST_PARTS,
        description="workers of a group that share the partitions of a declared sink",
    )
    subscription: str | None = Field(
        default=None, description="a sink's subscription, connect-NAME unless given"
    )
    start: str = Field(
        default="earliest", description="where a new subscription begins: earliest, latest, time:…"
    )


class Shape(_Section):
    """`[shape]`: changes to each record, applied in the order of these fields."""

    mask: list[str] = Field(default=[], description="fields whose value is replaced by ***")
    key: str | None = Field(default=None, description="the field that becomes the record's key")
    topic: str | None = Field(
        default=None, description="of a source: the topic, with fields in braces: orders-{country}"
    )
    select: list[str] = Field(default=[], description="the fields that stay")
    drop: list[str] = Field(default=[], description="fields that go")
    rename: dict[str, str] = Field(default={}, description="old = new")
    function: str | None = Field(
        default=None, description="module:function, from a list of records to a list of records"
    )

    @model_validator(mode="after")
    def _one_of(self) -> Shape:
        if self.select and self.drop:
            raise ValueError(
                "select and drop exclude each other: keep select, which names all fields that stay"
            )
        return self


class Target(_Section):
    """`[topic]` of a source: the topic to publish to, its schema, and the settings for creating it."""

    name: str
    partitions: int | None = Field(default=None, ge=1, le=10_000)
    schema_subject: str | None = None
    durability: Literal["fsynced", "memory"] | None = None


class _File(_Section):
    name: str = Field(
        pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]{0,79}$", description="letters, digits, _ and -, 80 at most"
    )
    connector: str
    topic: str | Target | None = None
    topics: list[str] | None = Field(default=None, min_length=1, max_length=MOST_TOPICS)
    settings: dict[str, Any] = {}
    delivery: Delivery = Delivery()
    shape: Shape = Shape()


@dataclass(frozen=True, slots=True, kw_only=True)
class Declared:
    """A checked file.

    The settings hold resolved secrets. The object stays in the process that connects and is never stored.

    Attributes:
        path: path of the file, for errors.
        kind: the connector's class.
        topics: full names. A sink has every topic that it reads. A source has the topic of the file, if it names one.
        target: the settings for creating a source's topic.
        epoch: number of times that the offsets of a declared sink were set. Positions in the target of another epoch do
            not count.
        part: which of the `delivery.workers` parts of the partitions a declared sink reads. None: all partitions.
        references: redacts resolved secrets in texts.
    """

    path: str
    name: str
    connector: str
    kind: type[Connector[Any]]
    topics: tuple[str, ...]
    target: Target | None
    settings: Any
    delivery: Delivery
    shape: Shape
    epoch: int = 0
    part: int | None = None
    references: References = field(repr=False)

    @property
    def is_sink(self) -> bool:
        return issubclass(self.kind, Sink)

    @property
    def subscription(self) -> str:
        """The name of a sink's subscription."""
        return self.delivery.subscription or f"connect-{self.name}"

    def make(self) -> Any:
        """Return a new connector.

        Raises:
            InvalidArgument: the settings contradict each other.
        """
        try:
            name = f"{self.name}.{self.epoch}" if self.epoch else self.name
            return self.kind(self.settings, name=name)
        except ClusterError as error:
            error.message = self.references.clean(f"{self.path}: {error.message}")
            raise


def read_file(path: str | Path) -> Declared:
    """Read and check a connector's file.

    Raises:
        InvalidArgument: the file has a mistake.
        MissingExtra: the connector's library is not installed.
    """
    try:
        with Path(path).open("rb") as source:
            content = source.read(MOST_FILE_BYTES + 1)
    except OSError as error:
        raise InvalidArgument(
            f"{path} cannot be read: {error.strerror}. Give the path of a connector's file.",
            field="file", value=str(path),
        ) from None  # fmt: skip
    if len(content) > MOST_FILE_BYTES:
        raise InvalidArgument(
            f"{path} is larger than {MOST_FILE_BYTES} bytes. Give a connector's file.",
            field="file",
            value=str(path),
        )
    try:
        tree = tomllib.loads(content.decode("utf-8-sig"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        hint = ""
        if "overwrite" in str(error):
            hint = (
                ' A topic with terms is one table: [topic] with name = "orders", instead of topic = "orders".'
            )
        raise InvalidArgument(
            f"{path} is no TOML: {without_secrets(str(error))}.{hint}", field="file", value=str(path)
        ) from None
    return declared(tree, path=str(path))


def declared(tree: dict[str, Any], *, path: str, epoch: int = 0, part: int | None = None) -> Declared:
    """Check the content of a file. Errors show `path`. Raises as `read_file` does."""
    found = checked(_File, tree, path=path)
    kind = connector_class(found.connector, path=path)
    is_sink = issubclass(kind, Sink)
    references = References()
    raw = references.resolve(found.settings, file=path, field="settings")
    settings = checked(kind.settings_model, raw, path=path, under="settings", secrets=references)
    made = Declared(
        path=path,
        name=found.name,
        connector=found.connector,
        kind=kind,
        topics=_topics(found, path, is_sink=is_sink),
        target=found.topic if isinstance(found.topic, Target) else None,
        settings=settings,
        delivery=found.delivery,
        shape=found.shape,
        epoch=epoch if is_sink else 0,
        part=part if found.delivery.workers > 1 else None,
        references=references,
    )
    _check_names(made)
    return made


Model = TypeVar("Model", bound=BaseModel)


def checked(
    model: type[Model], tree: Any, *, path: str, under: str = "", secrets: References | None = None
) -> Model:
    """Validate `tree` with a model.

    Raises:
        InvalidArgument: for the first mistake. `details["mistakes"]` is the number of mistakes.
    """
    try:
        return model.model_validate(tree)
    except ValidationError as error:
        mistakes = error.errors(include_url=False)
        first = mistakes[0]
        place = [part for part in first["loc"] if not _is_branch(part)]
        key = _dotted([under, *place] if under else place)
        value = _shown(key, first.get("input"), first["type"])
        why, remedy = _explained(model, first, place)
        clean = secrets.clean if secrets is not None else without_secrets
        more = f" ({len(mistakes) - 1} more)" if len(mistakes) > 1 else ""
        raise InvalidArgument(
            clean(f"{path}: {key or 'the file'}{f' = {value}' if value else ''}: {why}. {remedy}{more}"),
            file=path, field=key, value=clean(value), mistakes=len(mistakes),
        ) from None  # fmt: skip


def _explained(model: type[BaseModel], mistake: Any, place: Sequence[Any]) -> tuple[str, str]:
    """Return why a value is refused, and the remedy."""
    fields = _fields_at(model, place[:-1])
    match mistake["type"]:
        case "extra_forbidden":
            close = close_names(str(place[-1]), fields, at_most=1)
            meant = (
                f"Did you mean {close[0]}?" if close else f"There are {', '.join(sorted(fields)) or 'none'}."
            )
            return "unknown key", meant
        case "missing":
            return "missing", f"Add {place[-1]}."
        case _:
            text = str(mistake["msg"]).removeprefix("Value error, ").rstrip(".")
            described = fields.get(str(place[-1])) if place else None
            about = described.description if described is not None else None
            return text[0].lower() + text[
                1:
            ], f"{about[0].upper()}{about[1:]}." if about else "Change the value."


def _fields_at(model: type[BaseModel], place: Sequence[Any]) -> dict[str, Any]:
    for part in place:
        known = model.model_fields.get(str(part))
        inner = known.annotation if known is not None else None
        if not (isinstance(inner, type) and issubclass(inner, BaseModel)):
            return Target.model_fields if list(place) == ["topic"] else {}
        model = inner
    return {info.alias or name: info for name, info in model.model_fields.items()}


def _is_branch(part: Any) -> bool:
    """Return whether a part of a location names the branch of a union, not a key."""
    return isinstance(part, str) and (part in ("str", "Target") or "[" in part)


def _dotted(place: Sequence[Any]) -> str:
    text = ""
    for part in place:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else str(part)
    return text


def _shown(key: str, value: Any, kind: str) -> str:
    if kind in ("missing", "extra_forbidden") or isinstance(value, dict | BaseModel):
        return ""
    if is_secret_name(key.rpartition(".")[2]):
        return REDACTED
    text = repr(value)
    return text if len(text) <= _SHOWN_CHARS else f"{text[:_SHOWN_CHARS]}…"


def _units(parse: Any, given: Any) -> Any:
    try:
        return parse(given, field="")
    except InvalidArgument as error:
        raise ValueError(error.message.removeprefix(": ")) from None


def _topics(found: _File, path: str, *, is_sink: bool) -> tuple[str, ...]:
    def refuse(why: str, field: str) -> InvalidArgument:
        return InvalidArgument(f"{path}: {why}", file=path, field=field, value=None)

    if found.topic is not None and found.topics is not None:
        raise refuse("topic and topics exclude each other. Keep topics.", "topics")
    if is_sink:
        if isinstance(found.topic, Target):
            raise refuse('[topic] makes the topic of a source; a sink reads one. Write topic = "…".', "topic")
        names = [found.topic] if found.topic is not None else found.topics or []
        if not names:
            raise refuse('a sink reads topics. Add topic = "orders" or topics = ["a", "b"].', "topic")
    else:
        if found.topics is not None:
            raise refuse("a source writes to one topic. Write topic, or [shape] topic to spread.", "topics")
        given = found.topic.name if isinstance(found.topic, Target) else found.topic
        names = [] if given is None else [given]
    try:
        return tuple(dict.fromkeys(str(TopicName.parse(name)) for name in names))
    except ClusterError as error:
        raise InvalidArgument(
            f"{path}: topic: {error.message}", file=path, field="topic", value=names[0]
        ) from None


def _check_names(made: Declared) -> None:
    try:
        check_subscription(made.subscription)
        if made.is_sink:
            Position.parse(made.delivery.start, now_ms=0, field="delivery.start")
    except ClusterError as error:
        raise InvalidArgument(
            f"{made.path}: delivery: {error.message}", file=made.path,
            field="delivery", value=error.details.get("value"),
        ) from None  # fmt: skip
    if not made.is_sink and made.delivery.workers > 1:
        raise InvalidArgument(
            f"{made.path}: delivery.workers shares the partitions of a sink, and {made.connector} is a source. Remove it.",
            file=made.path, field="delivery.workers", value=made.delivery.workers,
        )  # fmt: skip
    if made.is_sink and made.shape.topic is not None:
        raise InvalidArgument(
            f"{made.path}: shape.topic chooses the topic of a source's records. Remove it from a sink.",
            file=made.path, field="shape.topic", value=made.shape.topic,
        )  # fmt: skip
