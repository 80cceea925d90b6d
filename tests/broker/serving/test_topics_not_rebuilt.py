"""The advice for a topic of a lost broker whose objects or copy are damaged: only what would not be refused."""

from __future__ import annotations

import pytest
from pydanube_broker.cluster.assignment import Assignment
from pydanube_broker.cluster.ids import BrokerId, Epoch, Incarnation, TopicId
from pydanube_broker.cluster.move_record import ChainRange
from pydanube_broker.moves.move import assign, damaged, take_away
from pydanube_broker.serving.ownership import not_rebuilt
from pydanube_core.errors import CorruptObject
from pydanube_core.names import TopicName
from pydanube_storage.metadata import Revision

OWNER, HEIR, LIFE = BrokerId(1), BrokerId(2), Incarnation(4)
SERVING = Assignment(
    topic_id=TopicId(7), topic=TopicName("default", "t"), broker_id=OWNER, incarnation=LIFE, epoch=Epoch(3)
)
CHAIN = ChainRange(journal=5, from_piece=1, until=9, above_epoch=0)


@pytest.mark.parametrize("chain", [CHAIN, None])
def test_a_take_over_is_advised_only_for_a_topic_with_a_copy(chain: ChainRange | None) -> None:
    sealed = take_away(SERVING, Revision(1), HEIR, at_ms=1, chain=chain).after
    assigned = assign(sealed, Revision(1), HEIR, incarnation=LIFE, epoch=Epoch(4)).after
    assert not_rebuilt(SERVING) is None
    assert not_rebuilt(assigned) is None
    why = not_rebuilt(damaged(assigned, Revision(2), CorruptObject("the object x is damaged")).after)
    assert why is not None
    assert why.startswith("the object x is damaged. ")
    assert "backup" in why
    assert ("take-over" in why, "brokers remove 1" in why) == ((True, True) if chain else (False, False))
