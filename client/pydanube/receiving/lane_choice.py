"""Choose the lanes of a consumer to which a call applies."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from pydanube_core.errors import ClusterError, InvalidArgument
from pydanube_core.names import TopicName

from pydanube.receiving.consume_lane import ConsumeLane


def lanes_of(
    lanes: Sequence[ConsumeLane], *, partition: int | None, topic: str | None
) -> Sequence[ConsumeLane]:
    """Return the lanes of one topic, of one partition, or all.

    Raises:
        InvalidArgument: there is no such topic or partition. `details["field"]` is the argument.
    """
    known = sorted({lane.topic for lane in lanes})
    if topic is not None:
        full = str(TopicName.parse(topic))
        lanes = [lane for lane in lanes if lane.topic == full]
        if not lanes:
            raise InvalidArgument(
                f"topic {topic!r} is not one of the consumer's: {', '.join(known[:10]) or 'it has none'}",
                field="topic",
                value=topic,
            )
        known = [full]
    if partition is None:
        return lanes
    if len(known) > 1:
        raise InvalidArgument(
            "partition= is of one topic: name it with topic=", field="partition", value=partition
        )
    chosen = [lane for lane in lanes if lane.partition == partition]
    if not chosen:
        count = len(lanes) if lanes and lanes[0].partition is not None else 0
        numbered = f"has {count}, numbered from 0" if count else "has no partitions"
        raise InvalidArgument(
            f"partition {partition!r}: {' '.join(known)} {numbered}",
            field="partition",
            value=partition,
            topic=" ".join(known),
        )
    return chosen


async def until_open(lanes: Iterable[ConsumeLane]) -> None:
    """Wait until every lane is open, or has left. Raises the error of one that failed."""
    for lane in lanes:
        try:
            await lane.opened
        except ClusterError:
            if not lane.left:
                raise
