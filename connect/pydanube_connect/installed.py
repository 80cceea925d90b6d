"""Find connectors: those of this package, entry points of the group `pydanube.connectors`, and `module:Class`."""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any, Final

from pydanube_core.errors import InvalidArgument, MissingExtra
from pydanube_core.extras import install_command
from pydanube_core.spelling import close_names

from pydanube_connect.connector import Connector, Sink, Source

GROUP: Final = "pydanube.connectors"
#: the connectors of this package. Each needs the extra `connect-SYSTEM`, for example `connect-postgres`.
OURS: Final = {
    "delta-sink": "pydanube_connect.delta.sink:DeltaSink",
    "http-sink": "pydanube_connect.http.sink:HttpSink",
    "kafka-source": "pydanube_connect.kafka.source:KafkaSource",
    "mqtt-source": "pydanube_connect.mqtt.source:MqttSource",
    "postgres-sink": "pydanube_connect.postgres.sink:PostgresSink",
    "postgres-source": "pydanube_connect.postgres.source:PostgresSource",
    "vectors-sink": "pydanube_connect.vectors.sink:VectorsSink",
    "webhook-source": "pydanube_connect.webhook.source:WebhookSource",
}


def installed_connectors() -> dict[str, EntryPoint]:
    """Return the entry points by connector name, sorted. Other packages cannot replace the connectors in `OURS`."""
    found = {point.name: point for point in entry_points(group=GROUP)}
    found |= {name: EntryPoint(name, where, GROUP) for name, where in OURS.items()}
    return dict(sorted(found.items()))


def search_beside(path: str) -> None:
    """Let modules be imported from the folder of a connector's file."""
    folder = str(Path(path).resolve().parent)
    if folder not in sys.path:
        sys.path.append(folder)


def connector_class(name: str, *, path: str) -> type[Connector[Any]]:
    """Return the class of an installed connector, or of `module:Class`, also beside the file `path`.

    Raises:
        InvalidArgument: there is no such connector.
        MissingExtra: the connector's library is not installed.
    """

    def refuse(why: str) -> InvalidArgument:
        return InvalidArgument(
            f"{path}: connector = {name!r}: {why}", file=path, field="connector", value=name
        )

    known = installed_connectors()
    try:
        if ":" in name:
            search_beside(path)
            module, _, attribute = name.partition(":")
            found = getattr(import_module(module), attribute)
        elif name in known:
            found = known[name].load()
        else:
            close = close_names(name, known, at_most=1)
            meant = (
                f"Did you mean {close[0]}?" if close else f"There are {', '.join(known)}, or module:Class."
            )
            raise refuse(f"no such connector. {meant}")
    except ModuleNotFoundError as error:
        if name in known and error.name and not error.name.startswith("pydanube"):
            raise _missing(name, error.name, path) from None
        raise refuse(f"{error}. Install its package, or correct module:Class.") from None
    except (ImportError, AttributeError, ValueError) as error:
        raise refuse(f"{error}. Correct module:Class.") from error
    if not (isinstance(found, type) and issubclass(found, Source | Sink)):
        raise refuse("it is neither a Source nor a Sink of pydanube_connect. Derive the class from one.")
    return found


def _missing(name: str, module: str, path: str) -> MissingExtra:
    """Return the error for a connector whose library is missing. The extra is named after the other system."""
    own = name in OURS
    extra = f"connect-{name.rpartition('-')[0]}"
    remedy = install_command(extra) if own else f"pip install {module}"
    return MissingExtra(f"{path}: {name} needs {module}, which is not installed: {remedy}", extra=extra)
