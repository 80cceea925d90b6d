"""Where a call goes whose topic is not served by the broker that it came to."""

from __future__ import annotations

from dataclasses import replace

import pytest
from pydanube_broker.relay.decision import PATIENCE_S, Handling, TopicPlace, decide
from pydanube_core.facts import BrokerAddress

ME = BrokerAddress(broker_id="1", broker_url="http://one:6650", admin_url="")
OTHER = BrokerAddress(broker_id="2", broker_url="http://two:6650", admin_url="")
AWAY = TopicPlace(known=True, served=False, owner=OTHER, me="1", relayed=False, waited_s=0.0)


@pytest.mark.parametrize(
    ("standing", "way"),
    [
        (AWAY, Handling.CARRY),
        (replace(AWAY, served=True), Handling.HERE),
        (replace(AWAY, known=False, owner=None), Handling.HERE),
        (replace(AWAY, owner=None), Handling.HOLD),
        (replace(AWAY, owner=ME), Handling.HOLD),  # it is being opened
        (replace(AWAY, relayed=True), Handling.REFUSE),  # one hop
        (replace(AWAY, relayed=True, owner=ME), Handling.HOLD),
        (replace(AWAY, relayed=True, owner=None), Handling.HOLD),
        (replace(AWAY, owner=replace(OTHER, broker_url="")), Handling.REFUSE),  # nobody knows where that is
        (replace(AWAY, owner=None, waited_s=PATIENCE_S), Handling.REFUSE),
        (replace(AWAY, waited_s=PATIENCE_S), Handling.REFUSE),
        (replace(AWAY, served=True, waited_s=PATIENCE_S), Handling.HERE),
    ],
)
def test_way_of_a_call(standing: TopicPlace, way: Handling) -> None:
    assert decide(standing) is way
