"""The wire from a mirror's cluster to its source is cut in one direction: noticed, and copied again when it is whole."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import anyio
import pytest
from anyio import to_thread
from pydanube import connect

from tests.support.broker_process import BrokerProcess, free_ports
from tests.support.mirrors import described, ends, until, until_copied
from tests.support.relay import Relay, Way

pytestmark = [pytest.mark.long, pytest.mark.anyio, pytest.mark.timeout(600)]

Make = Callable[..., BrokerProcess]
ORDERS = "/default/orders"


async def linked(make_broker: Make, relay: Relay, port: int) -> tuple[BrokerProcess, BrokerProcess]:
    """Start a source behind the relay, with ten messages, and a broker that has copied them."""
    advertised = f"http://127.0.0.1:{relay.port}"
    source = make_broker(environment={"DANUBE_SERVER__ADVERTISED_URL": advertised})
    source.ports = (port, *free_ports(3))
    here = make_broker()
    for broker in (source, here):
        await to_thread.run_sync(broker.start)
    await to_thread.run_sync(lambda: source.ask("topics.create", topic=ORDERS))
    await to_thread.run_sync(publish, source, range(10))
    arguments = {"link": "eu", "source": advertised.replace("http", "danube"), "topics": ORDERS}
    await to_thread.run_sync(lambda: here.ask("links.create", **arguments))
    await to_thread.run_sync(until_copied, source, here, ORDERS)
    return source, here


def publish(source: BrokerProcess, numbers: range) -> None:
    """Publish past the relay, to which a client would be directed."""
    for number in numbers:
        source.ask("messages.publish", topic=ORDERS, payload=f"{number}")


async def read(url: str) -> list[tuple[int, bytes]]:
    async with connect(url) as client, client.reader(ORDERS, stop="head") as reader:
        return [(message.offset, message.payload) async for message in reader]


@pytest.mark.parametrize("way", list(Way), ids=lambda way: way.value)
async def test_a_wire_that_is_cut_one_way_is_noticed_and_the_copy_goes_on(
    make_broker: Make, way: Way
) -> None:
    (port,) = free_ports(1)
    async with Relay(port) as relay:
        source, here = await linked(make_broker, relay, port)
        relay.lost = way
        sent = 10

        async def produce(stopping: anyio.Event) -> None:
            nonlocal sent
            while not stopping.is_set():
                await to_thread.run_sync(publish, source, range(sent, sent + 10))
                sent += 10

        def unreachable() -> dict[str, Any] | None:
            link = described(here)
            return link if link["state"] == "source_unreachable" else None

        def all_unreachable() -> bool:
            return {each["state"] for each in described(here)["mirrors"]} == {"source_unreachable"}

        async with anyio.create_task_group() as group:
            stopping = anyio.Event()
            group.start_soon(produce, stopping)
            link = await to_thread.run_sync(until, "the link's state", unreachable)
            assert link["next_steps"], link
            stopping.set()
        # While only what the mirror's broker sends is lost, the source's messages arrive on the open stream.
        await to_thread.run_sync(until, "the mirror's state", all_unreachable)
        assert relay.bytes_lost
        copied = await to_thread.run_sync(ends, here, ORDERS)
        assert way is Way.OUT or copied == {ORDERS: 10}
        await to_thread.run_sync(publish, source, range(sent, sent + 10))
        sent += 10
        relay.lost = None
        await to_thread.run_sync(until_copied, source, here, ORDERS)
        await to_thread.run_sync(lambda: until("the state", lambda: described(here)["state"] == "copying"))
        stored = [await read(url) for url in (here.url, f"http://127.0.0.1:{port}")]
        assert stored[0] == stored[1]
        assert [payload for _, payload in stored[0]] == [b"%d" % number for number in range(sent)]
        assert [each["gap"] for each in (await to_thread.run_sync(described, here))["mirrors"]] == [None]


async def test_a_fail_over_whose_fence_arrives_without_its_answer_claims_no_fence(make_broker: Make) -> None:
    """The source refuses its clients then, and nothing that it acknowledged later could be missing."""
    (port,) = free_ports(1)
    async with Relay(port) as relay:
        source, here = await linked(make_broker, relay, port)
        relay.lost = Way.BACK
        done = await to_thread.run_sync(lambda: here.ask("links.fail_over", link="eu"))
        assert (done["source_fenced"], "did not answer" in done["source"]) == (False, True), done
        assert done["topics"][0]["copied_until"] == {ORDERS: 10}
        await to_thread.run_sync(lambda: here.publish(ORDERS, [b"goes on"]))
        assert await to_thread.run_sync(ends, here, ORDERS) == {ORDERS: 11}
        refused = await to_thread.run_sync(
            lambda: source.rpc("messages.publish", topic=ORDERS, payload="to the fenced source")
        )
        assert refused["error"]["data"]["code"] == "FAILED_OVER", refused
