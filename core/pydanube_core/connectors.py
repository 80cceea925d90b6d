"""Declared connectors: the record of one in the metadata, and the topics by which workers share them. Pure.

A connector is declared in the metadata and run by a worker. The record is the desired state: the file, the group of
workers, whether it is paused. Workers report the actual state as messages of `REPORTS`, and log lines as
messages of `LOGS`. A worker holds the lease of a
connector while it is the active consumer of the failover subscription with the connector's name on `LEASES`, a topic
without messages. The partitions of a sink may be several parts, each with a lease of its own.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from pydanube_core.errors import InvalidArgument
from pydanube_core.names import TopicName
from pydanube_core.secrets import is_secret_name, without_secrets
from pydanube_core.stored_json import StoredJson

CONNECTORS: Final = "connect/connectors/"  # keys of the metadata store, below /admin/
#: keys too, each a number that grows when positions of a sink are set. It is part of the name of the positions in the
#: sink's target, and stays when the connector is deleted: its name may come again, and the positions are still there
EPOCHS: Final = "connect/epochs/"
LEASES: Final = "/default/connect-leases"
REPORTS: Final = "/default/connect-reports"
LOGS: Final = "/default/connect-logs"
LOG_LINES: Final = 200  # of each connector
LOGS_KEPT_S: Final = 3_600
REPORT_EVERY_S: Final = 2.0
#: milliseconds after which a report no longer counts: several reports, and the delay of a loaded broker
REPORT_COUNTS_MS: Final = 15_000
MOST_CONNECTORS: Final = 1_000
MOST_PARTS: Final = 64  # of a sink's partitions. Each has a lease, a consumer and a connection to the target
MOST_DEFINITION_CHARS: Final = 65_536
#: built-in sources that register no schemas. Others may
_WITHOUT_SCHEMAS: Final = frozenset({"mqtt-source", "postgres-source", "webhook-source"})
_REFERENCE: Final = re.compile(r"\$\{[^}]*\}")
_PASSWORD: Final = re.compile(r"://[^\s/@:]*:[^\s/@]+@")
_USER: Final = re.compile(r"://[^\s/@]*@")


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectorRecord(StoredJson):
    """One declared connector.

    Attributes:
        definition: the connector's file, in TOML. Secrets are references, which only the worker resolves.
        group: the workers that may run it.
        generation: grows with each change and restart. A worker restarts a connector whose generation has changed.
    """

    name: str
    definition: str
    group: str
    paused: bool = False
    generation: int = 1

    @property
    def tree(self) -> dict[str, Any]:
        """The content of the file, under the connector's name."""
        return {**tomllib.loads(self.definition), "name": self.name}


def connector_key(name: str) -> str:
    return CONNECTORS + name


def check_definition(text: str) -> Mapping[str, Any]:
    """Return the content of a connector's file. Its settings are checked where the connector is installed.

    Raises:
        InvalidArgument: the text is no TOML, names no connector, or holds a secret that is no reference.
        InvalidName: it names a topic that cannot be.
    """
    try:
        tree = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError):
        raise InvalidArgument(
            "the definition is no TOML. Check the file: danube connect run FILE --check",
            field="definition",
            value=None,
        ) from None
    if not isinstance(tree.get("connector"), str):
        raise InvalidArgument(
            'the definition names no connector. Add connector = "postgres-sink", or another of danube connect list',
            field="definition.connector", value=None,
        )  # fmt: skip
    for place, value in _texts(tree, ""):
        bare = _REFERENCE.sub("", value)
        named = is_secret_name(place.rpartition(".")[2]) and value and bare == value
        shown = _USER.sub("://", bare)
        if named or _PASSWORD.search(bare) or without_secrets(shown) != shown:
            raise InvalidArgument(
                f"{place} holds a secret in clear, which would be stored and shown. Write a reference that the worker resolves: "
                "${env:NAME} or ${file:PATH}", field=f"definition.{place}", value=None,
            )  # fmt: skip
    for topic in topics_of(tree):
        TopicName.parse(topic)
    return tree


def registers_schemas(connector: str) -> bool:
    """Return whether a connector may register schemas, with its worker's rights."""
    return not connector.endswith("-sink") and connector not in _WITHOUT_SCHEMAS


def parts_of(definition: str) -> int:
    """Return the number of parts of a connector's partitions, which as many workers can share."""
    delivery = tomllib.loads(definition).get("delivery")
    parts = delivery.get("workers") if isinstance(delivery, dict) else None
    return parts if type(parts) is int and 1 <= parts <= MOST_PARTS else 1


def lease_of(connector: str, part: int) -> str:
    """Return the subscription of `LEASES` whose active consumer runs one part of a connector."""
    return f"connect-{connector}.{part}" if part else f"connect-{connector}"


def topics_of(tree: Mapping[str, Any]) -> list[str]:
    """Return the topics that a connector's file names."""
    topic, topics = tree.get("topic"), tree.get("topics")
    if isinstance(topic, dict):
        topic = topic.get("name")
    found = [topic] if topic is not None else topics if isinstance(topics, list) else []
    return [each for each in found if isinstance(each, str)]


def _texts(tree: Any, place: str) -> Iterator[tuple[str, str]]:
    if isinstance(tree, str):
        yield place, tree
    elif isinstance(tree, dict):
        for key, value in tree.items():
            yield from _texts(value, f"{place}.{key}" if place else str(key))
    elif isinstance(tree, list):
        for value in tree:
            yield from _texts(value, place)
