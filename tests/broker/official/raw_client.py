"""The official protocol call by call, with nothing in between."""

from __future__ import annotations

import contextlib
from types import TracebackType
from typing import Any, Self

import grpc
import grpc.aio
from pydanube_core.generated import danube_pb2 as pb
from pydanube_core.services import Method

from tests.support.grpc_services import METHODS

NON_RELIABLE, RELIABLE = 0, 1
EXCLUSIVE, SHARED, FAILOVER, KEY_SHARED = 0, 1, 2, 3
PRODUCER, CONSUMER = 0, 1


class RawClient:
    """A client of the original's services on one connection."""

    def __init__(self, url: str) -> None:
        self._channel = grpc.aio.insecure_channel(
            url.removeprefix("http://"),
            options=[
                ("grpc.max_receive_message_length", 4 << 20),  # the official clients' own limit
                ("grpc.max_send_message_length", -1),
                ("grpc.use_local_subchannel_pool", 1),
                ("grpc.min_reconnect_backoff_ms", 100),
                ("grpc.max_reconnect_backoff_ms", 200),
                ("grpc.initial_reconnect_backoff_ms", 100),
            ],
        )
        self._calls = {
            method.path: self._call(method)
            for method in METHODS.values()
            if method.service.startswith("danube.")
        }
        self._request_ids = iter(range(1, 1 << 62))

    def _call(self, method: Method) -> Any:
        return getattr(self._channel, method.kind.value)(
            method.path,
            request_serializer=method.request.SerializeToString,
            response_deserializer=method.response.FromString,
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._channel.close()

    def call(self, path: str, request: Any, **options: Any) -> Any:
        """The call object of any method: awaitable for unary ones."""
        return self._calls[f"/danube.{path}"](request, **options)

    # -- producers -------------------------------------------------------------------------------------------

    async def create_producer(
        self, topic: str, name: str = "p", strategy: int = RELIABLE, **fields: Any
    ) -> int:
        request = pb.ProducerRequest(
            request_id=next(self._request_ids),
            producer_name=name,
            topic_name=topic,
            dispatch_strategy=strategy,  # type: ignore[arg-type]
            **fields,
        )
        response = await self.call("ProducerService/CreateProducer", request)
        assert response.request_id == request.request_id
        assert response.producer_name == name
        return int(response.producer_id)

    @staticmethod
    def message(topic: str, producer_id: int, payload: bytes, name: str = "p", **fields: Any) -> Any:
        """Return a message with the fields that official clients set."""
        return pb.StreamMessage(
            msg_id=pb.MsgID(producer_id=producer_id, topic_name=topic, broker_addr="http://127.0.0.1:1/"),
            payload=payload,
            producer_name=name,
            **{"publish_time": 1_700_000_000_000, **fields},
        )

    async def send(self, topic: str, producer_id: int, payload: bytes, name: str = "p", **fields: Any) -> int:
        """Publish; the request id that was echoed."""
        fields.setdefault("request_id", next(self._request_ids))
        message = self.message(topic, producer_id, payload, name, **fields)
        response = await self.call("ProducerService/SendMessage", message)
        return int(response.request_id)

    # -- consumers -------------------------------------------------------------------------------------------

    async def subscribe(
        self, topic: str, subscription: str = "s", name: str = "c", type: int = EXCLUSIVE, **fields: Any
    ) -> int:
        request = pb.ConsumerRequest(
            request_id=next(self._request_ids),
            topic_name=topic,
            consumer_name=name,
            subscription=subscription,
            subscription_type=type,  # type: ignore[arg-type]
            **fields,
        )
        response = await self.call("ConsumerService/Subscribe", request)
        assert response.request_id == request.request_id
        assert response.consumer_name == name
        return int(response.consumer_id)

    async def receive(self, consumer_id: int) -> Stream:
        """Open the stream and wait for its headers."""
        stream = Stream(
            self.call("ConsumerService/ReceiveMessages", pb.ReceiveRequest(consumer_id=consumer_id))
        )
        await stream.headers()
        return stream

    async def consume(
        self, topic: str, subscription: str = "s", name: str = "c", type: int = EXCLUSIVE, **fields: Any
    ) -> Stream:
        return await self.receive(await self.subscribe(topic, subscription, name, type, **fields))

    async def ack(self, message: Any, subscription: str = "s", offset: int | None = None) -> None:
        request = pb.AckRequest(request_id=message.request_id, subscription_name=subscription)
        request.msg_id.CopyFrom(message.msg_id)
        if offset is not None:
            request.msg_id.topic_offset = offset
        response = await self.call("ConsumerService/Ack", request)
        assert response.request_id == message.request_id

    async def nack(self, message: Any, subscription: str = "s", **fields: Any) -> None:
        request = pb.NackRequest(request_id=message.request_id, subscription_name=subscription, **fields)
        request.msg_id.CopyFrom(message.msg_id)
        response = await self.call("ConsumerService/Nack", request)
        assert response.request_id == message.request_id

    # -- the rest --------------------------------------------------------------------------------------------

    async def lookup(self, topic: str) -> Any:
        request = pb.TopicLookupRequest(request_id=next(self._request_ids), topic=topic)
        response = await self.call("Discovery/TopicLookup", request)
        assert response.request_id == request.request_id
        return response

    async def partitions(self, topic: str) -> list[str]:
        request = pb.TopicLookupRequest(request_id=next(self._request_ids), topic=topic)
        response = await self.call("Discovery/TopicPartitions", request)
        assert response.request_id == request.request_id
        return list(response.partitions)

    async def health(self, kind: int, number: int) -> str:
        response = await self.call(
            "HealthCheck/HealthCheck",
            pb.HealthCheckRequest(client=kind, id=number),  # type: ignore[arg-type]
        )
        return pb.HealthCheckResponse.ClientStatus.Name(response.status)


class Stream:
    """An open ReceiveMessages."""

    def __init__(self, call: Any) -> None:
        self._call = call

    async def headers(self) -> None:
        """Wait for the response headers; raises the error of a stream that has none."""
        await self._call.initial_metadata()
        if self._call.done():
            await self._raise()

    async def _raise(self) -> None:
        raise grpc.aio.AioRpcError(
            await self._call.code(),
            await self._call.initial_metadata(),
            await self._call.trailing_metadata(),
            await self._call.details(),
        )

    async def next(self) -> Any:
        """The next message."""
        message = await self._call.read()
        if message is grpc.aio.EOF:
            await self._raise()
        return message

    async def take(self, count: int) -> list[bytes]:
        """The payloads of the next messages."""
        return [(await self.next()).payload for _ in range(count)]

    async def ended(self) -> grpc.StatusCode:
        """Read on to the end; how it ended."""
        with contextlib.suppress(grpc.aio.AioRpcError):
            while await self._call.read() is not grpc.aio.EOF:
                pass
        return await self._call.code()  # type: ignore[no-any-return]

    def cancel(self) -> None:
        self._call.cancel()


async def code_of(awaitable: Any) -> grpc.StatusCode:
    """The status a call fails with; OK if it does not."""
    try:
        await awaitable
    except grpc.aio.AioRpcError as error:
        return error.code()
    return grpc.StatusCode.OK
