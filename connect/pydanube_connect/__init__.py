"""Connectors: sources bring records of other systems into topics, sinks write topics to other systems.

`danube connect run FILE…` runs them. A connector of one's own is a class with one method and a model of its settings,
found by an entry point of the group `pydanube.connectors`, or named in the file as `module:Class`; see `connector`.
"""

from pydanube_connect.connector import Guarantee, SchemaOffer, Settings, Sink, Source
from pydanube_connect.records import Batch, Place, Record, Refused, RetryLater
from pydanube_connect.writing import Overtaken

__all__ = [
    "Batch",
    "Guarantee",
    "Overtaken",
    "Place",
    "Record",
    "Refused",
    "RetryLater",
    "SchemaOffer",
    "Settings",
    "Sink",
    "Source",
]
