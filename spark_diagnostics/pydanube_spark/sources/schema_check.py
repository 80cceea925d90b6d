"""Check all rows of a task against a schema before any of them is sent.

They wait in a file of the worker. If they are few, the task passes them to the driver, which sends them when the rows of
every task are valid.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import IO, Any, Final

from pydanube.payloads.serialising import payload_check
from pydanube_core.errors import InvalidArgument

WAITING_BYTES: Final = 4 << 20  # per task
#: tasks with lower numbers may leave rows to the driver. Both bounds limit the driver's memory, far below the maximum
#: result size of its tasks (`spark.driver.maxResultSize`, 1 GiB)
WAITING_TASKS: Final = 64


def check_nulls_have_keys(rows: Any) -> None:
    """Raise `InvalidArgument` if a row has neither a payload nor a key: a null payload marks its key as deleted."""
    import pyarrow.compute as pc

    payload = rows.column("payload")
    if not payload.null_count:
        return
    if (
        "key" not in rows.schema.names
        or pc.any(pc.and_(payload.is_null(), rows.column("key").is_null())).as_py()
    ):
        raise InvalidArgument(
            "payload is null in a row without a key: a null payload marks its key as deleted. Give the row a key, or leave "
            "it out",
            field="payload",
            value=None,
        )


def keep_fitting(rows: Iterator[Any], schema: Any, file: IO[bytes]) -> int:
    """Check each payload against a schema and write the rows to a file. Return the number of rows.

    Args:
        schema: of the registry, from `client.schemas.latest`.

    Raises:
        PayloadInvalid: a payload is not valid. InvalidArgument: a payload is null without a key.
    """
    import pyarrow as pa

    check, kept, count = payload_check(schema), None, 0
    for batch in rows:
        check_nulls_have_keys(batch)
        for payload in batch.column("payload").drop_null().cast(pa.binary()).to_pylist():
            check(payload)
        if kept is None:
            kept = pa.ipc.new_stream(file, batch.schema)
        kept.write_batch(batch)
        count += batch.num_rows
    if kept is not None:
        kept.close()
    return count


def kept_rows(file: Any) -> Iterator[Any]:
    """Yield the rows that `keep_fitting` wrote, from a file or its bytes, batch by batch."""
    import pyarrow as pa

    with pa.ipc.open_stream(file) as stream:
        yield from stream
