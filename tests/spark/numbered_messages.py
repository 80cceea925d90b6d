"""Messages whose payloads and keys are numbers."""

from __future__ import annotations

from pydanube.sync import connect

from tests.support.broker_process import BrokerProcess


def send(broker: BrokerProcess, topic: str, *numbers: int, partitions: int | None = None) -> None:
    """Publish the numbers as text, each with a key of its own."""
    with connect(broker.url) as client, client.producer(topic, partitions=partitions) as producer:
        producer.send_many([b"%d" % n for n in numbers], keys=[f"k{n}" for n in numbers])
