"""The operations on the cold tier and the journal."""

from __future__ import annotations

from typing import Final

from pydanube_admin.effect import Effect
from pydanube_admin.models import Page
from pydanube_admin.objects.handlers import (
    collect_objects,
    compact_objects,
    describe_journal,
    export_objects,
    forecast_collect,
    forecast_compact,
    forecast_export,
    forecast_replay,
    list_objects,
    replay_topic,
    verify_objects,
)
from pydanube_admin.objects.models import (
    CollectedObjects,
    CompactedObjects,
    ExportedObjects,
    ExportObjectsRequest,
    JournalDescription,
    JournalRequest,
    ListObjectsRequest,
    ObjectItem,
    ObjectsRequest,
    ReplayedTopic,
    ReplayTopicRequest,
    VerifiedObjects,
    VerifyObjectsRequest,
)
from pydanube_admin.operation import Example, Operation

__all__ = ["OBJECT_OPERATIONS"]

OBJECT_OPERATIONS: Final = (
    Operation(
        name="objects.list",
        tool="list_objects",
        title="List objects",
        effect=Effect.READ,
        permission="objects:list",
        reversible=None,
        summary="List the Parquet objects that hold the cold part of a topic; only listed objects count.",
        request=ListObjectsRequest,
        result=Page[ObjectItem],
        handler=list_objects,
        examples=(Example(arguments={"topic": "orders"}, note="every object"),),
        default_profile=False,
    ),
    Operation(
        name="objects.verify",
        tool="verify_objects",
        title="Verify objects",
        effect=Effect.READ,
        permission="objects:verify",
        reversible=None,
        summary="Read the objects of a topic back and compare them with the catalog: damaged, missing, gaps, duplicates.",
        request=VerifyObjectsRequest,
        result=VerifiedObjects,
        handler=verify_objects,
        damage=("damaged", "missing", "gaps", "duplicates"),
        examples=(Example(arguments={"topic": "orders"}, note="all of them"),),
        default_profile=False,
        long_running=True,
    ),
    Operation(
        name="objects.compact",
        tool="compact_objects",
        title="Compact objects",
        effect=Effect.CHANGE,
        permission="objects:compact",
        reversible=False,
        summary="Merge small neighbouring objects of a topic into large ones; no message changes.",
        request=ObjectsRequest,
        result=CompactedObjects,
        handler=compact_objects,
        forecast=forecast_compact,
        examples=(Example(arguments={"topic": "orders"}, note="now, rather than by itself"),),
        default_profile=False,
        long_running=True,
    ),
    Operation(
        name="objects.collect",
        tool="collect_objects",
        title="Collect objects",
        effect=Effect.DESTROY,
        permission="objects:collect",
        reversible=False,
        summary="Delete objects in the folder of a topic that the catalog does not list.",
        request=ObjectsRequest,
        result=CollectedObjects,
        handler=collect_objects,
        forecast=forecast_collect,
        examples=(Example(arguments={"topic": "orders"}, note="after a crash or a compaction"),),
        default_profile=False,
        long_running=True,
    ),
    Operation(
        name="objects.export",
        tool="export_objects",
        title="Export objects",
        effect=Effect.CREATE,
        permission="objects:export",
        reversible=False,
        summary="Write a range of a topic to one file on the broker's machine, as Parquet or JSON lines; what is not tiered "
        "yet is tiered first.",
        request=ExportObjectsRequest,
        result=ExportedObjects,
        handler=export_objects,
        forecast=forecast_export,
        examples=(
            Example(arguments={"topic": "orders", "to": "orders.parquet"}, note="all of it"),
            Example(
                arguments={"topic": "orders", "from": "time:-1h", "to": "orders.jsonl", "format": "jsonl"},
                note="the last hour as JSON lines",
            ),
        ),
        default_profile=False,
        required_flags=("to",),
        long_running=True,
    ),
    Operation(
        name="topics.replay",
        tool="replay_topic",
        title="Replay a topic",
        effect=Effect.CREATE,
        permission="topics:replay",
        reversible=False,
        summary="Copy a range of a topic into another topic; each copy says in the attribute x-replayed-from which message "
        "it is of.",
        request=ReplayTopicRequest,
        result=ReplayedTopic,
        handler=replay_topic,
        forecast=forecast_replay,
        examples=(
            Example(
                arguments={"topic": "orders", "from": "time:-1h", "to": "orders-again"}, note="the last hour"
            ),
        ),
        default_profile=False,
        required_flags=("from", "to"),
        long_running=True,
    ),
    Operation(
        name="journal.describe",
        tool="describe_journal",
        title="Describe the journal",
        effect=Effect.READ,
        permission="journal:describe",
        reversible=None,
        summary="Show the segments of the write-ahead log and the topics that keep the oldest from going.",
        request=JournalRequest,
        result=JournalDescription,
        handler=describe_journal,
        examples=(Example(arguments={}, note="this broker"),),
        default_profile=False,
    ),
)
