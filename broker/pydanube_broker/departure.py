"""A leaving broker hands its topics over first (`danube up --drain`), and sends its clients after them.

While topics leave, clients notice nothing, because their calls are carried. Then they are sent away, in the way that
all official clients understand (docs/research/data-plane.md#105-recipes): health checks of consumers are answered with
CLOSE, and their streams end with UNAVAILABLE when each has had time for a check. Sends and subscriptions are refused as
retryable, upon which clients look the topic up. Look-ups are answered to the end, and acknowledgements are carried on,
because most clients report a refused one to their application.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

import anyio
from pydanube_core.errors import ClusterError

from pydanube_broker.broker import Broker
from pydanube_broker.cluster.membership import BrokerState

log = logging.getLogger("pydanube.cluster")

_LOOK_S = 0.1
_ALONE_S = 3.0  # no other broker takes topics: all are being stopped, or the last of them is away


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """Times in seconds.

    Attributes:
        topics: for all of them to leave. The others stay, and come back with the broker.
        health_checks: until consumers have sent a health check, which they do every 5 s.
        look_ups: clients look a topic up after five refused sends, 1.5 to 3 s. Some need more.
    """

    topics: float = 300.0
    health_checks: float = 6.0
    look_ups: float = 12.0

    @property
    def total(self) -> float:
        """The seconds that all of it may take."""
        return self.topics + self.health_checks + self.look_ups


async def _until_drained(broker: Broker) -> bool:
    """Wait until all topics have left, and return whether they have: not if no other broker takes topics any more."""
    coordinator = broker.registry.ownership.coordinator
    me = int(broker.registry.ownership.me.broker_id)
    seen_s = anyio.current_time()
    while True:
        member = next((each for number, each in coordinator.members.items() if number == me), None)
        if member is not None and member.state is BrokerState.DRAINED:
            return True
        now_s = anyio.current_time()
        if broker.moves.targets():
            seen_s = now_s
        elif now_s >= seen_s + _ALONE_S:
            return False
        await anyio.sleep(_LOOK_S)


async def depart(broker: Broker, patience: Patience) -> None:
    """Hand all topics over and send the clients after them. Stop the broker afterwards."""
    try:
        await broker.moves.drain()
    except ClusterError as error:
        log.warning("not_drained", extra={"code": error.code, "error": error.message})
        return
    is_drained = False
    with anyio.move_on_after(patience.topics):
        is_drained = await _until_drained(broker)
    facts = await broker.port.at_stop()
    left = [each for each in facts.topics if each.waits]
    if is_drained:
        log.info("broker_drained", extra={"topics_left": len(left)})
    else:
        messages = sum(each.messages for each in left)
        told = {"would_wait": len(left), "messages_on_this_disk": messages, "other_brokers": facts.others}
        log.warning("drain_given_up", extra=told)
        if not facts.others:
            return
    relay = broker.relay
    if relay is None or broker.access.connect_url is not None:
        return  # clients come back by the one address, to another broker
    relay.send_away()
    broker.official.send_away()
    await anyio.sleep(patience.health_checks)
    relay.end_streams()
    await anyio.sleep(patience.look_ups)
