"""Options of the data sources as one checked value."""

from __future__ import annotations

import difflib
import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Self

from pydanube.addresses import DEFAULT_BROKER_URL, admin_address
from pydanube_core.errors import InvalidArgument
from pydanube_core.names import TopicName
from pydanube_core.positions import Position
from pydanube_core.topic_pattern import TopicPattern
from pydanube_core.units import parse_bytes, parse_duration_s
from pydanube_storage.objects import StoreOptions

#: how a store is reached, as fields of `StoreOptions`
STORE: Final = ("endpoint", "region", "path_style", "profile", "role", "anonymous")
_OF_SPARK: Final = ("checkpointlocation",)  # Spark hands a sink its own options too
ON_ERROR: Final = ("null", "fail")
SPLIT_BYTES: Final = (
    32 << 20
)  # of stored bytes for one Spark partition: about 100 MB in memory, seconds of work


def _text(text: str, *, field: str) -> str:
    return text


def _switch(given: object, *, field: str) -> bool:
    text = str(given).lower()
    if text not in ("true", "false"):
        raise InvalidArgument(f"{field}: write true or false, not {text!r}", field=field, value=text)
    return text == "true"


def _count(text: str, *, field: str) -> int:
    if not text.isascii() or not text.isdigit() or len(text) > 15 or int(text) < 1:
        raise InvalidArgument(
            f"{field}: write a whole number from 1 on, not {text!r:.100}", field=field, value=text[:100]
        )
    return int(text)


def _size(text: str, *, field: str) -> int:
    size = parse_bytes(text, field=field)
    if not size:
        raise InvalidArgument(
            f"{field}: write a size of at least one byte, not {text!r}", field=field, value=text
        )
    return size


# What the text of each option becomes; where it is not given, the field's default stands
_READ: Final[Mapping[str, Callable[..., Any]]] = {
    **dict.fromkeys(("topic", "pattern", "broker", "admin", "tier", "cluster", "start", "end"), _text),
    "decode": _switch,
    "on_error": lambda text, field: text.lower(),
    "max_messages_per_batch": _count,
    "max_bytes_per_batch": _size,
    "min_messages_per_batch": _count,
    "max_trigger_delay": parse_duration_s,
    "fail_on_data_loss": _switch,
    "split_bytes": _size,
    **dict.fromkeys(("write_id", "dispatch_strategy", "schema"), _text),
}
_FIELD: Final = {"max_trigger_delay": "max_trigger_delay_s"}  # where it is not called as the option
TOPIC: Final = (*_READ, *STORE)
#: what Spark's connector to Kafka calls it, in lower case → ours
_KAFKA: Final[Mapping[str, str]] = {
    **dict.fromkeys(("subscribe", "assign"), "topic"),
    **dict.fromkeys(("startingoffsets", "startingtimestamp", "startingoffsetsbytimestamp"), "start"),
    **dict.fromkeys(("endingoffsets", "endingtimestamp", "endingoffsetsbytimestamp"), "end"),
    "kafka.bootstrap.servers": "broker",
    "subscribepattern": "pattern",
    "maxoffsetspertrigger": "max_messages_per_batch",
    "minoffsetspertrigger": "min_messages_per_batch",
    "maxbytespertrigger": "max_bytes_per_batch",
    "maxtriggerdelay": "max_trigger_delay",
    "failondataloss": "fail_on_data_loss",
    "minpartitions": "split_bytes",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicOptions:
    """The options of reading and writing topics.

    With `tier` and without `broker` and `admin` only the object store is asked; else the broker says what is committed
    and has the live tail.
    """

    topic: str = ""  # several have commas between them
    pattern: str | None = None  # in place of it: a glob over the topics of one namespace
    broker: str | None = None
    admin: str | None = None
    tier: str | None = None
    cluster: str | None = None
    start: str = "earliest"
    end: str | None = None
    decode: bool = False
    on_error: str = "null"  # what a payload becomes that cannot be decoded
    max_messages_per_batch: int | None = None  # of a micro-batch
    max_bytes_per_batch: int | None = None
    min_messages_per_batch: int | None = None  # fewer wait, but no longer than `max_trigger_delay_s`
    max_trigger_delay_s: float = 900.0
    fail_on_data_loss: bool = True
    split_bytes: int = SPLIT_BYTES
    write_id: str | None = None
    dispatch_strategy: str | None = "reliable"
    schema: str | None = None  # subject, of what is written, or decoded by
    store: Mapping[str, str] | None = None

    def __post_init__(self) -> None:
        if self.on_error not in ON_ERROR:
            raise InvalidArgument(
                f"on_error: write {' or '.join(ON_ERROR)}, not {self.on_error!r}",
                field="on_error",
                value=self.on_error,
            )
        if self.decode and self.offline:
            raise InvalidArgument(
                "decode asks the broker's registry for schemas: give admin, its address, beside tier",
                field="admin",
                value=None,
            )
        if self.topic and self.pattern is not None:
            raise InvalidArgument("give topic or pattern, one of them", field="pattern", value=self.pattern)
        if self.pattern is not None:
            TopicPattern.parse(self.pattern)
        names = [str(TopicName.parse(name.strip())) for name in self.topic.split(",")] if self.topic else []
        if len(set(names)) < len(names):
            raise InvalidArgument("topic: the same one twice", field="topic", value=self.topic)
        object.__setattr__(self, "topic", ",".join(names))
        if self.decode and self.several:
            raise InvalidArgument(
                "decode is of one topic: its schema gives the column its type; read several without, or one by one",
                field="decode",
                value=True,
            )
        for field, text in (("start", self.start), ("end", self.end)):
            if text is not None and offsets_in(text, field=field) is None:
                Position.parse(text, now_ms=0, field=field)

    @property
    def topics(self) -> Sequence[str]:
        """The given names; none with a pattern."""
        return self.topic.split(",") if self.topic else ()

    @property
    def several(self) -> bool:
        """Whether several topics may be read."""
        return self.pattern is not None or "," in self.topic

    @property
    def offline(self) -> bool:
        """Whether only the object store is used, without a broker."""
        return self.tier is not None and self.broker is None and self.admin is None

    @property
    def broker_url(self) -> str:
        return self.broker or os.environ.get("DANUBE_BROKER_URL") or DEFAULT_BROKER_URL

    @property
    def admin_url(self) -> str:
        return admin_address(self.admin, self.broker, os.environ)

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> Self:
        """Parse a reader's or writer's options.

        Raises `InvalidArgument`: an unknown option, or a value that is none; `field` is the option.
        """
        given = words_of(options, TOPIC)
        fields: dict[str, Any] = {
            _FIELD.get(name, name): read(given[name], field=name)
            for name, read in _READ.items()
            if name in given
        }
        return cls(**fields, store={name: given[name] for name in STORE if name in given})


def offsets_in(text: str, *, field: str) -> dict[str, int] | None:
    """Return offsets of partitions from JSON, `{"0": 23, "1": -2}`; None for a text that is no JSON object.

    A partition is its number or its own name; -2 is the earliest offset, -1 the latest.

    Raises `InvalidArgument`: it is none of this.
    """
    if not text.lstrip().startswith("{"):
        return None
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        found = {"": None}
    if not all(type(offset) is int and offset >= -2 for offset in found.values()):
        raise InvalidArgument(
            f'{field}: write offsets of partitions as {{"0": 23, "1": -2}}, not {text:.100}',
            field=field,
            value=text[:100],
        )
    return dict(found)


def words_of(options: Mapping[str, str], known: tuple[str, ...]) -> dict[str, str]:
    """Return the options in lower case; unknown ones are refused."""
    given = {name.lower(): value for name, value in options.items() if name.lower() not in _OF_SPARK}
    for name, value in given.items():
        if name not in known:
            ours = _KAFKA.get(name)
            near = [ours] if ours in known else difflib.get_close_matches(name, known, n=1)
            hint = f"; did you mean {near[0]}?" if near else f"; there are {', '.join(known)}"
            raise InvalidArgument(f"option {name!r} is not known{hint}", field=name, value=value)
    return given


def store_options(url: str, given: Mapping[str, str] | None) -> StoreOptions:
    """Return how to reach a store; keys and tokens come from where every AWS tool finds them."""
    said: dict[str, Any] = {name: value for name, value in (given or {}).items() if name in STORE}
    for name in said.keys() & {"path_style", "anonymous"}:
        said[name] = _switch(said[name], field=name)
    return StoreOptions(url=url, **said)
