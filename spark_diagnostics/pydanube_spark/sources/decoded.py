"""The additional columns of a topic's rows with the option `decode`. Their types are fixed when a query is created.

Spark requests the schema first and a reader perhaps much later, so the reader uses the version whose types the query
has.
"""

from __future__ import annotations

from dataclasses import replace

from pydanube.retry import Retry
from pydanube_core.errors import ClusterError, SchemaInvalid
from pydanube_storage.topics.decoding.column import Decoding
from pydanube_storage.topics.decoding.fault import Fault
from pydanube_storage.topics.decoding.registry import (
    Version,
    format_of,
    latest_version,
    version_of,
    versions_of,
)
from pyspark.sql.pandas.types import from_arrow_type
from pyspark.sql.types import StringType, StructField, StructType

from pydanube_spark.sources.columns import TOPIC_SCHEMA
from pydanube_spark.sources.options import TopicOptions


def schema_of(options: TopicOptions) -> StructType:
    """Return the columns of the topic, with `value` and `_decode_error`.

    Raises:
        TopicNotFound, SchemaNotFound, Unavailable, InvalidArgument: see `latest_version`.
        SchemaInvalid: no column can have the schema's type.
    """
    return _with_value(latest_version(options.calls, options.topic, options.schema))


def decoding_of(options: TopicOptions, schema: StructType) -> Decoding | None:
    """Return the decoding for the columns of `schema`, None without the option `decode`.

    Raises `SchemaInvalid` if no version of the subject has these types any more.
    """
    if not options.decode:
        return None
    calls = options.calls
    latest = latest_version(calls, options.topic, options.schema)
    found = latest if _is(latest, schema) else None
    if found is None:
        for number in versions_of(calls, latest.subject):
            version = version_of(calls, latest.subject, number)
            if _is(version, schema):
                found = version
                break
    if found is None:
        raise SchemaInvalid(
            f"no version of {latest.subject} has the types this query was made with: make it again",
            field="decode",
            subject=latest.subject,
        )
    # Tasks read versions while the query runs, and retry during a restart of the broker
    return Decoding(broker=replace(calls, retry=Retry()), reader=found, fail=options.on_error == "fail")


def _is(version: Version, schema: StructType) -> bool:
    try:
        return _with_value(version) == schema
    except ClusterError:
        return False


def _with_value(version: Version) -> StructType:
    try:
        kind = from_arrow_type(format_of(version).type, True)
    except (Fault, TypeError, ValueError, RecursionError) as error:
        raise SchemaInvalid(
            f"{version.subject} version {version.version} has no type that a column could be: {error}",
            field="decode",
            subject=version.subject,
            version=version.version,
        ) from None
    return StructType(
        [*TOPIC_SCHEMA.fields, StructField("value", kind), StructField("_decode_error", StringType())]
    )
