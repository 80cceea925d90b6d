"""The tables of options in docs/spark.md: what they name is there, and each row beside the Kafka connector has its tests."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from pydanube_core.errors import InvalidArgument
from pydanube_spark.sources.options import TOPIC, TopicOptions

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "spark.md").read_text(encoding="utf-8")
LIVE, STREAMS, SEVERAL = "test_sources_live", "test_streams", "test_several_topics"
#: what Kafka's connector calls it → (module, test) that tries ours
TRIED = {
    "`kafka.bootstrap.servers`": [(LIVE, "test_a_topic_is_one_table_of_objects_and_tail")],
    "`subscribe`": [(SEVERAL, "test_a_list_and_a_pattern_are_one_table")],
    "`subscribePattern`": [(SEVERAL, "test_topics_of_a_pattern_join_a_stream_and_one_made_again_is_told")],
    "`assign`": [(STREAMS, "test_a_partition_is_a_topic_of_its_own_name")],
    "`startingOffsets`, `endingOffsets`": [(STREAMS, "test_offsets_of_partitions_are_json")],
    "`startingTimestamp`, `startingOffsetsByTimestamp`": [(STREAMS, "test_a_time_is_a_beginning")],
    "`maxOffsetsPerTrigger`": [
        (STREAMS, "test_available_now_honours_the_limit_ends_where_the_topic_ended_and_reports")
    ],
    "`maxBytesPerTrigger` (of others)": [(STREAMS, "test_a_batch_has_no_more_bytes_than_it_may")],
    "`minOffsetsPerTrigger`, `maxTriggerDelay`": [
        (STREAMS, "test_few_messages_wait_for_more_until_the_delay_is_over")
    ],
    "`failOnDataLoss`": [(STREAMS, "test_lost_messages_end_a_stream_or_are_passed_over")],
    "`minPartitions`": [("test_extents", "test_small_objects_share_a_task_and_a_large_one_is_cut")],
    "`includeHeaders`": [(LIVE, "test_rows_hold_what_was_sent_on_both_sides_of_the_seam")],
    "column `topic` of what is written": [(STREAMS, "test_each_row_goes_to_the_topic_that_it_names")],
    "`groupIdPrefix`, `kafka.group.id`": [(LIVE, "test_a_stream_that_is_killed_goes_on_without_loss_or_repeat")],
}  # fmt: skip


def rows_below(heading: str) -> list[list[str]]:
    """The cells of the first table behind a line."""
    table = re.search(r"((?:^\|.*\n)+)", PAGE[PAGE.index(heading) :], re.MULTILINE)
    assert table is not None
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in table[1].splitlines()[2:]]


def test_each_row_beside_the_kafka_connector_has_its_tests() -> None:
    rows = [row[0] for row in rows_below("### Beside the Kafka connector")]
    assert sorted(rows) == sorted(TRIED)
    for module, test in (each for found in TRIED.values() for each in found):
        text = (ROOT / "tests" / "spark" / f"{module}.py").read_text(encoding="utf-8")
        assert f"\ndef {test}(" in text, f"{module}.{test}"


def test_a_kafka_option_is_answered_with_ours() -> None:
    for kafka, ours, *_ in rows_below("### Beside the Kafka connector"):
        wanted = re.findall(r"`(\w+)`", ours)
        named = re.findall(r"`([\w.]+)`", kafka)
        if not wanted or kafka in ("`includeHeaders`", "column `topic` of what is written"):
            continue
        for number, name in enumerate(named):
            meant = wanted[number] if len(wanted) == len(named) else wanted[0]
            with pytest.raises(InvalidArgument, match=f"did you mean {meant}\\?"):
                TopicOptions.parse({name: "1"})


def test_every_option_is_in_the_table_and_no_other() -> None:
    named = re.findall(r"`(\w+)`", " ".join(row[0] for row in rows_below("| option | meaning |")))
    assert sorted(named) == sorted(TOPIC)
