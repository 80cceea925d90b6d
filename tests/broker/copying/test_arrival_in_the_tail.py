"""A topic arrives from another broker in the journal's last records, and the broker is killed before anything proves them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from pydanube_broker.cluster.ids import Epoch
from pydanube_broker.copying.piece import Piece
from pydanube_broker.journal import Disk, Journal, JournalOptions
from pydanube_broker.journal.helper import InlineSyncer
from pydanube_broker.subscription.cursor import CursorSnapshot
from pydanube_broker.topics.hub import Hub
from pydanube_broker.topics.limits import Limits
from pydanube_broker.topics.log_state import LogState
from pydanube_broker.topics.topic import Topic

from tests.broker.copying.arrivals import copy_in
from tests.broker.journal.ledger import InlinePreparer

pytestmark = pytest.mark.anyio
TOPIC, SUBSCRIPTION = 7, 3


def hub_of(folder: Path) -> Hub:
    hub, disk = Hub(), Disk()
    hub.journal = Journal(
        folder,
        JournalOptions(segment_bytes=1 << 20, tail_cache_bytes=1 << 20),
        hub,
        disk=disk,
        syncer=InlineSyncer(disk),
        preparer=InlinePreparer(disk),
    )
    return hub


async def arrived() -> AsyncIterator[Piece]:
    state = LogState(
        TOPIC,
        epoch=1,
        next_offset=40,
        tiered_offset=20,
        opened=True,
        cursors={SUBSCRIPTION: CursorSnapshot(floor=15)},
    )
    yield Piece(topic_id=TOPIC, epoch=1, first_offset=20, end_offset=40, batches=(), state=state)


async def test_a_topic_that_was_made_before_the_tail_was_replayed_has_what_arrived_in_it(
    tmp_path: Path,
) -> None:
    first = hub_of(tmp_path)
    first.journal.recover(first.begins)
    await first.journal.begin()
    await copy_in(first, TOPIC, Epoch(2), arrived())
    first.journal.abandon()  # nothing was written behind it: that it is on disk is proven by no record

    again = hub_of(tmp_path)
    found = again.journal.recover(again.begins)
    assert found.tail, "it is in the unproven tail"
    topic = Topic("/default/t", again.take_state(TOPIC), again, options=None, limits=Limits(), epoch=Epoch(3))
    again.add(topic)
    topic.state.cursors.setdefault(8, CursorSnapshot(floor=20))  # as a subscription does that has none yet
    await again.journal.begin()
    again.fold_replayed()
    topic.recovered()
    assert topic.state is again.states[TOPIC], "what the topic appends is what the next head says"
    assert (topic.state.epoch, topic.state.next_offset, topic.commit) == (2, 40, 40)
    assert {number: each.floor for number, each in topic.state.cursors.items()} == {SUBSCRIPTION: 15, 8: 20}
    await again.journal.close()
