"""Connectors: sources publish records of other systems to topics, sinks write topics to other systems.

`danube connect run FILE…` runs them. A custom connector is a class with one method and a model of its settings. The
runner finds it by an entry point of the group `pydanube.connectors`, or by `module:Class` in the file. See `connector`.
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
