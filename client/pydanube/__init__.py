"""The Python SDK: publish and consume, async first; `pydanube.sync` has the same without await.

    async with connect() as client:
        async with client.producer("orders") as producer:
            receipt = await producer.send(b"one", key="customer-7")       # on stable storage by now
            waiting = [producer.send_nowait(b"%d" % i) for i in range(1000)]
            await producer.flush()
        async with client.consumer("orders", "billing") as consumer:
            async for message in consumer:
                print(message.offset, message.payload)
                await message.ack()
        async with client.reader("orders", start="time:-15m", stop="head") as reader:
            async for batch in reader.batches():
                print(len(batch), batch.offsets[0], batch.payloads[0])

Durability is a property of the topic; a receipt says which. Consumers get every message at least once, in order per
partition. Retryable failures are retried inside for as long as `Retry(max_elapsed_s=…)` says; what is raised is a
`ClusterError` with a code, details and the next step. Many streams share a client; a client belongs to one event
loop, a `sync` client to none. `testing.InMemoryCluster` runs the same client without a broker.
"""

from pydanube_core.errors import ClusterError, Fatal, Misuse, Retryable

from pydanube.client import Client, connect
from pydanube.consumer import Consumer, Reader
from pydanube.facts import (
    ClientEvent,
    ClientEventKind,
    ClientStatistics,
    ConsumerStatistics,
    OffsetRange,
    ProducerStatistics,
    Receipt,
    SchemaRef,
    SendSummary,
)
from pydanube.grpc_transport import Tls
from pydanube.message import Batch, Message
from pydanube.outbound import PendingSend
from pydanube.producer import Producer
from pydanube.retry import Retry
from pydanube.schemas import Registered, Schema, Schemas

__all__ = [
    "Batch",
    "Client",
    "ClientEvent",
    "ClientEventKind",
    "ClientStatistics",
    "ClusterError",
    "Consumer",
    "ConsumerStatistics",
    "Fatal",
    "Message",
    "Misuse",
    "OffsetRange",
    "PendingSend",
    "Producer",
    "ProducerStatistics",
    "Reader",
    "Receipt",
    "Registered",
    "Retry",
    "Retryable",
    "Schema",
    "SchemaRef",
    "Schemas",
    "SendSummary",
    "Tls",
    "connect",
]
