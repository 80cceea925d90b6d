"""The first answer on a stream: the session is open, or why it is not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from pydanube_core.errors import ClusterError, Internal, Unavailable

from pydanube.wire.transport import Stream

ResponseT = TypeVar("ResponseT")


async def first_answer(
    stream: Stream, parse: Callable[[bytes], ResponseT], *, who: str, topic: str, concrete_topic: str
) -> ResponseT:
    """Read the answer to an open. Its `opened` is set.

    Args:
        parse: reads a `PublishResponse` or a `ConsumeResponse`.
        who: `producer` or `consumer`.

    Raises:
        Unavailable: the stream ended without one.
        ClusterError: the broker's error.
    """
    data = await stream.read()
    if data is None:
        raise Unavailable(
            f"{concrete_topic}: the broker ended the stream before its first answer", topic=topic
        )
    response: Any = parse(data)
    match response.WhichOneof("kind"):
        case "opened":
            opened: ResponseT = response
            return opened
        case "failure":
            raise ClusterError.from_json(response.failure.error.decode())
        case other:
            raise Internal(f"the broker answered a {who}'s open with {other}", topic=topic)
