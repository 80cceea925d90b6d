"""Options of the data sources as one checked value."""

from __future__ import annotations

import difflib
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Self

from pydanube.addresses import DEFAULT_BROKER_URL, admin_address
from pydanube.table_broker import TableBroker
from pydanube_core.errors import InvalidArgument
from pydanube_core.units import parse_bytes, parse_duration_s
from pydanube_storage.topics.located import STORE, switch
from pydanube_storage.topics.query import TopicQuery

_OF_SPARK: Final = ("checkpointlocation",)  # Spark also passes its own options to a sink
ON_ERROR: Final = ("null", "fail")
SPLIT_BYTES: Final = 32 << 20  # stored bytes per Spark partition, about 100 MB in memory and seconds of work


def _text(text: str, *, field: str) -> str:
    return text


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


# Option → parser of its text. A missing option keeps the field's default
_READ: Final[Mapping[str, Callable[..., Any]]] = {
    **dict.fromkeys(("topic", "pattern", "broker", "admin", "tier", "cluster", "start", "end"), _text),
    "decode": switch,
    "on_error": lambda text, field: text.lower(),
    "max_messages_per_batch": _count,
    "max_bytes_per_batch": _size,
    "min_messages_per_batch": _count,
    "max_trigger_delay": parse_duration_s,
    "fail_on_data_loss": switch,
    "split_bytes": _size,
    **dict.fromkeys(("write_id", "dispatch_strategy", "schema"), _text),
}
_FIELD: Final = {"max_trigger_delay": "max_trigger_delay_s"}  # option → field, if the names differ
TOPIC: Final = (*_READ, *STORE)
#: option of Spark's Kafka connector, in lower case → ours
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

    With `tier` and without `broker` and `admin` only the object store is read. Otherwise the broker lists the committed
    objects and delivers the live tail.
    """

    topic: str = ""  # several are separated by commas
    pattern: str | None = None  # instead of `topic`, a glob over the topics of one namespace
    broker: str | None = None
    admin: str | None = None
    tier: str | None = None
    cluster: str | None = None
    start: str = "earliest"
    end: str | None = None
    decode: bool = False
    on_error: str = "null"  # for a payload that cannot be decoded: `null`, or `fail` the job
    max_messages_per_batch: int | None = None  # of a micro-batch
    max_bytes_per_batch: int | None = None
    min_messages_per_batch: int | None = None  # fewer messages wait for up to `max_trigger_delay_s`
    max_trigger_delay_s: float = 900.0
    fail_on_data_loss: bool = True
    split_bytes: int = SPLIT_BYTES
    write_id: str | None = None
    dispatch_strategy: str | None = "reliable"
    schema: str | None = None  # subject of written messages, or to decode by
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
                "decode takes schemas from the broker's registry: give admin, its address, beside tier",
                field="admin",
                value=None,
            )
        object.__setattr__(self, "topic", ",".join(self.query.topics))
        if self.decode and self.several:
            raise InvalidArgument(
                "decode is of one topic: its schema gives the column its type. Read several without, or one by one",
                field="decode",
                value=True,
            )

    @property
    def query(self) -> TopicQuery:
        """The query without Spark. Raises `InvalidArgument`, `InvalidName`."""
        return TopicQuery(
            topics=self.topic.split(",") if self.topic else (),
            pattern=self.pattern,
            broker=None if self.offline else self.calls,
            tier=self.tier,
            cluster=self.cluster,
            start=self.start,
            end=self.end,
            store=self.store or {},
        )

    @property
    def calls(self) -> TableBroker:
        """The calls to the broker, by the addresses of this process."""
        return TableBroker(broker_url=self.broker_url, admin_url=self.admin_url)

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

        Raises `InvalidArgument` for an unknown option or an invalid value. `field` is the option.
        """
        given = words_of(options, TOPIC)
        fields: dict[str, Any] = {
            _FIELD.get(name, name): read(given[name], field=name)
            for name, read in _READ.items()
            if name in given
        }
        return cls(**fields, store={name: given[name] for name in STORE if name in given})


def words_of(options: Mapping[str, str], known: tuple[str, ...]) -> dict[str, str]:
    """Return the options with names in lower case. Raises `InvalidArgument` for unknown ones."""
    given = {name.lower(): value for name, value in options.items() if name.lower() not in _OF_SPARK}
    for name, value in given.items():
        if name not in known:
            ours = _KAFKA.get(name)
            near = [ours] if ours in known else difflib.get_close_matches(name, known, n=1)
            hint = f"; did you mean {near[0]}?" if near else f". There are {', '.join(known)}"
            raise InvalidArgument(f"option {name!r} is not known{hint}", field=name, value=value)
    return given
