"""Exports to a file of this machine. The command writes the file and reads the messages from the broker.

The broker writes files only below `exports/` of its data directory. For a path, the command reads the topic with the SDK
from its owner, with the rights of the caller, and writes the file.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final

from pydanube.wire.endpoint import UNIX
from pydanube_core.errors import Internal, InvalidArgument
from pydanube_core.names import AUDIT_TOPIC, SYSTEM_NAMESPACE

from pydanube_cli.command import Common

_GROUP: Final = 500  # records written and synced together
_RECORDS: Final = 10_000  # default of `audit.export`


def writes_here(operation: str, arguments: Mapping[str, Any], common: Common) -> bool:
    """Return whether this command writes the file: a path, unless the broker's own socket takes it."""
    if operation not in EXPORTS or (common.admin or "").startswith(UNIX):
        return False
    to = arguments.get("to")
    return to is not None and len(Path(to).parts) > 1


def export_here(operation: str, arguments: Mapping[str, Any], common: Common) -> dict[str, Any]:
    """Write the export and return its result, with the fields of the operation's result.

    Raises `ClusterError`: the broker refused a call, or the file cannot be written.
    """
    if common.admin is not None and common.broker is None:
        raise InvalidArgument(
            "the command reads the topic from the broker and writes the file itself. Name the broker with --broker too",
            field="broker",
            value=None,
        )
    from pydanube_cli.runtime import (  # `writes_here` runs with every operation
        run_async,
        terminate_like_interrupt,
    )

    with terminate_like_interrupt():
        return run_async(partial(EXPORTS[operation], arguments, common))


async def _objects(arguments: Mapping[str, Any], common: Common) -> dict[str, Any]:
    from pydanube_cli.runtime import require

    require("broker", what="an export of a topic to a file of this machine")
    from pydanube import connect
    from pydanube_storage.parquet.columns import Meta
    from pydanube_storage.parquet.export import ExportFile, ExportOfBatches

    to, file_format = Path(arguments["to"]), arguments.get("format") or "parquet"
    topic = common.call("topics.describe", {"topic": arguments["topic"]})
    if topic["partitions"]:
        raise InvalidArgument(
            f"{topic['topic']} has partitions, each with offsets of its own: export them one by one, such as "
            f"{topic['topic']}-part-0",
            field="topic",
            value=arguments["topic"],
        )
    start, until = arguments.get("from") or "earliest", arguments.get("until") or "latest"
    stop = "head" if until == "latest" else until
    meta = Meta(cluster="", topic=topic["topic"], topic_id=int(topic["topic_id"]), start=0, end=0)
    async with (
        connect(common.broker_url, principal=common.principal) as client,
        client.reader(topic["topic"], start=start, stop=stop) as reader,
    ):
        [(_, partition)] = reader.starts
        file = ExportFile(to, meta, file_format=file_format, partition=partition)
        export = ExportOfBatches(file)
        try:
            async for batch in reader.batches():
                offsets = batch.offsets
                export.add(batch._delivered.batch.stored, start=offsets[0], end=offsets[-1] + 1)
            said = export.finish()
        except BaseException:
            file.abort()
            raise
    return {
        "topic": topic["topic"], "path": str(to), "format": file_format, **said, "start_offset": export.start,
        "end_offset": export.end if said["messages"] else None,
    }  # fmt: skip


async def _audit(arguments: Mapping[str, Any], common: Common) -> dict[str, Any]:
    from pydanube import connect
    from pydanube_storage.audit_file import AuditFile

    most = arguments.get("limit") or _RECORDS
    own = arguments.get("broker_id") or common.call("brokers.status")["broker_id"]
    topic = _audit_topic(common, own)
    done = 0
    with AuditFile(Path(arguments["to"])) as file:
        start = file.next_after(arguments.get("from_seq"))
        async with (
            connect(common.broker_url, principal=common.principal) as client,
            client.reader(
                topic,
                start="earliest" if start is None else f"offset:{start}",
                stop="head",
                credit_messages=4 * _GROUP,
            ) as reader,
        ):
            [next_seq] = reader.starts.values()
            group: list[bytes] = []
            async for message in reader:
                group.append(message.payload)
                done, next_seq = done + 1, message.offset + 1
                if len(group) == _GROUP or done == most:
                    file.append(group)
                    group = []
                if done == most:
                    break
            file.append(group)
    return {
        "broker_id": own, "to": arguments["to"], "into": None, "records": done, "next_seq": next_seq, "complete": done < most,
    }  # fmt: skip


def _audit_topic(common: Common, own: str) -> str:
    """Return the name of a broker's audit: each of several has its own."""
    there = {
        item["topic"]
        for item in common.call("topics.list", {"namespace": SYSTEM_NAMESPACE, "limit": 1000})["items"]
    }
    for name in (f"{AUDIT_TOPIC}-{own}", AUDIT_TOPIC):
        if name in there:
            return name
    raise Internal(f"broker {own} has no audit that this caller can see")


EXPORTS: Final = {"objects.export": _objects, "audit.export": _audit}
