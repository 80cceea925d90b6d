"""Where a call goes whose topic is not served by the broker that it came to."""

from __future__ import annotations

from dataclasses import replace

import pytest
from pydanube_broker.relay.decision import PATIENCE_S, Standing, Way, decide
from pydanube_core.facts import BrokerAddress

ME = BrokerAddress(broker_id="1", broker_url="http://one:6650", admin_url="")
OTHER = BrokerAddress(broker_id="2", broker_url="http://two:6650", admin_url="")
AWAY = Standing(known=True, served=False, owner=OTHER, me="1", relayed=False, waited_s=0.0)


@pytest.mark.parametrize(
    ("standing", "way"),
    [
        (AWAY, Way.CARRY),
        (replace(AWAY, served=True), Way.HERE),
        (replace(AWAY, known=False, owner=None), Way.HERE),
        (replace(AWAY, owner=None), Way.HOLD),
        (replace(AWAY, owner=ME), Way.HOLD),  # it is being opened
        (replace(AWAY, relayed=True), Way.REFUSE),  # one hop
        (replace(AWAY, relayed=True, owner=ME), Way.HOLD),
        (replace(AWAY, relayed=True, owner=None), Way.HOLD),
        (replace(AWAY, owner=replace(OTHER, broker_url="")), Way.REFUSE),  # nobody knows where that is
        (replace(AWAY, owner=None, waited_s=PATIENCE_S), Way.REFUSE),
        (replace(AWAY, waited_s=PATIENCE_S), Way.REFUSE),
        (replace(AWAY, served=True, waited_s=PATIENCE_S), Way.HERE),
    ],
)
def test_way_of_a_call(standing: Standing, way: Way) -> None:
    assert decide(standing) is way
