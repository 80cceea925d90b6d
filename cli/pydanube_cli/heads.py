"""The present end of a topic: the next offset of each partition, asked at the broker's client port.

`consume SUBSCRIPTION --exit` needs it, and a consumer's own messages do not tell. A plain reader that starts at
`latest` is opened and left: its first answer has the head, and it leaves nothing behind.
"""

from __future__ import annotations

from contextlib import aclosing
from dataclasses import dataclass

import anyio
from pydanube.wire.first_answer import first_answer
from pydanube.wire.http2_transport import Http2Transport
from pydanube_core.errors import DeadlineExceeded
from pydanube_core.generated.danube_stream_pb2 import (
    ConsumeRequest,
    ConsumeResponse,
    OpenConsumer,
    ResolveRequest,
    ResolveResponse,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Heads:
    topic: str
    next_offsets: dict[int | None, int]  # partition (None: not partitioned) → one past the last message


async def topic_heads(url: str, topic: str, *, timeout_s: float) -> Heads:
    """Return the next offset of each partition of `topic`.

    Raises:
        TopicNotFound: there is none.
        Unavailable: the broker does not answer.
        DeadlineExceeded: not within `timeout_s`.
    """
    transport = Http2Transport(url)
    try:
        with anyio.fail_after(timeout_s):
            request = ResolveRequest(topic=topic).SerializeToString()
            resolved = ResolveResponse.FromString(await transport.resolve(request, timeout_s=timeout_s))
            return Heads(
                topic=resolved.topic,
                next_offsets={
                    index if resolved.partitioned else None: await _head(part.broker_url or url, part.topic)
                    for index, part in enumerate(resolved.partitions)
                },
            )
    except TimeoutError:
        raise DeadlineExceeded(
            f"{url} did not say within {timeout_s:g} s where {topic} ends", topic=topic, timeout_s=timeout_s
        ) from None
    finally:
        await transport.aclose()


async def _head(url: str, topic: str) -> int:
    async with (
        aclosing(Http2Transport(url)) as transport,
        aclosing(await transport.consume()) as stream,
    ):
        opening = ConsumeRequest(open=OpenConsumer(topic=topic, start="latest"))
        await stream.write(opening.SerializeToString())
        answer = await first_answer(
            stream, ConsumeResponse.FromString, who="reader", topic=topic, concrete_topic=topic
        )
        return int(answer.opened.head_offset)
