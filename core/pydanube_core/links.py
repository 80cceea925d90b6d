"""Links: the record of one in the metadata, the mark of its mirrors, and the facts that brokers report of it. Pure.

A link is declared at the cluster that mirrors. Its brokers read the record and copy what it names. The token for the
source is a file of the broker's machine, which the record only names.

A mirror's topic record has the option `mirror`: the link that writes it, the source's cluster and topic, and the ids of the
source's logs, by which a topic of the same name that was made again is told from it. After the fail-over the option
`lineage` has the clusters that wrote the topic before, each with the offset behind what it wrote, and the epoch in which this
cluster goes on there, which is above all of theirs. The source's topic has the
option `failed_over_to` then, if the source could be reached: the cluster that writes it now.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final
from urllib.parse import urlsplit

from pydanube_core.addresses import SCHEMES
from pydanube_core.errors import InvalidArgument
from pydanube_core.known_fields import known_fields
from pydanube_core.names import TopicName
from pydanube_core.stored_json import StoredJson

LINKS: Final = "links/"  # keys of the metadata store, below /admin/
MOST_LINKS: Final = 100
FENCE_S: Final = 5.0  # longest time for the source to refuse its clients
MOST_PATTERNS: Final = 10  # as the source takes them
BROKER_PORT: Final = 6650  # of an address without one
_SCHEMES: Final[Mapping[str, str]] = {
    **{scheme: "https" if tls else "http" for scheme, tls in SCHEMES.items()},
    "danube+tls": "https",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkRecord(StoredJson):
    """One declared link.

    Attributes:
        source: addresses of brokers of the source, as `danube://eu-1:6650,eu-2:6650`.
        topics: patterns of the source's topics.
        start: `earliest`, or `latest` for messages from the mirror's creation on.
        rename: prefix of the mirrors' names.
        failed_over: all its mirrors were made topics of this cluster. It copies nothing any more.
        max_bytes_per_s: most that each broker copies for the link. 0: no limit.
        token_file: path, at each broker, of the file with the token for the source.
        roles: also the source's roles and bindings are mirrored, as far as they hold on the topics.
        generation: grows with each change. Brokers begin the link anew with it.
    """

    name: str
    source: str
    topics: tuple[str, ...]
    start: str = "earliest"
    rename: str = ""
    token_file: str | None = None
    max_bytes_per_s: int = 0
    roles: bool = False
    paused: bool = False
    failed_over: bool = False
    created_at_ms: int = 0
    generation: int = 1

    @classmethod
    def from_bytes(cls, data: bytes) -> LinkRecord:
        """Parse a stored record. Raises `ValueError`, `KeyError`, `TypeError` if it is invalid."""
        found = json.loads(data)
        return cls(**known_fields(cls, {**found, "topics": tuple(found["topics"])}))


def link_key(name: str) -> str:
    return LINKS + name


def source_urls(source: str) -> list[str]:
    """Return the addresses of a link's source, as `http://` or `https://`. Raises `InvalidArgument`."""
    scheme, mark, rest = source.partition("://")
    if not mark:
        scheme, rest = "danube", source
    found = []
    for place in rest.split(","):
        try:
            parts = urlsplit(f"//{place.strip()}")
            host, port = parts.hostname, parts.port or BROKER_PORT
        except ValueError:
            host, port = None, 0
        if scheme not in _SCHEMES or not host or parts.path or parts.query or parts.username is not None:
            raise InvalidArgument(
                f"source {source!r:.200} is no address of a cluster: write danube://host:6650,host:6650, or danubes:// for "
                "TLS. A token goes into a file (--token-file)",
                field="source",
                value=None,
            )
        shown = f"[{host}]" if ":" in host else host
        found.append(f"{_SCHEMES[scheme]}://{shown}:{port}")
    return found


MIRROR: Final = "mirror"
LINEAGE: Final = "lineage"
FAILED_OVER_TO: Final = "failed_over_to"


@dataclass(frozen=True, slots=True, kw_only=True)
class MirrorOf:
    """The option `mirror`. `ids`: of the source's logs, by partition."""

    link: str
    cluster: str
    topic: str
    ids: tuple[int, ...]

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> MirrorOf | None:
        """Return the mark of a topic's options, None if the topic is no mirror."""
        found = options.get(MIRROR)
        if found is None:
            return None
        return cls(
            link=found["link"], cluster=found["cluster"], topic=found["topic"], ids=tuple(found["ids"])
        )

    def to_option(self) -> dict[str, Any]:
        return {**asdict(self), "ids": list(self.ids)}

    def log_of(self, partition: int | None) -> str:
        """Return the name of the source's log of a partition."""
        name = TopicName.parse(self.topic)
        return str(name if partition is None else name.part(partition))


def writer_elsewhere(options: Mapping[str, Any]) -> str | None:
    """Return the cluster to which a topic was failed over, None if it is written here."""
    found = options.get(FAILED_OVER_TO)
    return None if found is None else str(found["cluster"])


def ids_before(options: Mapping[str, Any], partition: int | None) -> set[int]:
    """Return the ids that a partition's log had in the clusters that wrote it before. Sessions of producers name them."""
    at = partition or 0
    return {written["ids"][at] for written in options.get(LINEAGE, ()) if at < len(written["ids"])}


def link_of(options: Mapping[str, Any]) -> str | None:
    """Return the link that writes a topic, None if it is no mirror."""
    found = options.get(MIRROR)
    return None if found is None else str(found["link"])


def mirror_of(options: Mapping[str, Any]) -> str | None:
    """Return a mirror's link and topic of the source, as lists show them."""
    found = options.get(MIRROR)
    return None if found is None else f"{found['link']}:{found['topic']}"


@dataclass(frozen=True, slots=True, kw_only=True)
class MirrorFacts:
    """One log of a mirror, at its owner.

    Attributes:
        source: name of the source's log.
        copied_until: offset behind the newest message that is copied and durable.
        source_end: the same of the source, as it said last; None before it said so.
        lag_ms: append time of the source's newest message minus that of the newest copied one; None if either is unknown.
        complete_until_ms: time until which everything of the source is here; None if it is unknown.
        gap: offsets that the source had deleted before they were copied.
        fenced: whether the source reported that it was fenced, and so its last cursors and sessions are here.
    """

    topic: str
    source: str
    state: str
    why: str | None
    copied_until: int
    source_end: int | None
    lag_messages: int | None
    lag_ms: int | None
    complete_until_ms: int | None
    gap: tuple[int, int] | None
    fenced: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class StandingFacts:
    """A topic of the source at a link: the name of its mirror, its state, and the reason if it is not copied."""

    topic: str
    mirror: str | None
    state: str
    why: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkFacts:
    """A link at one broker.

    Attributes:
        state: copying, paused or source_unreachable.
        mirrors: the logs that this broker owns.
        logs: names of the logs of all brokers, by the metadata.
    """

    link: str
    state: str
    why: str | None
    cluster: str | None
    mirrors: Sequence[MirrorFacts]
    left_out: Sequence[StandingFacts]
    logs: Sequence[str] = ()
