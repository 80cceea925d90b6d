"""Continue a sequence of messages where a named producer stopped, as an outbox does."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from pydanube_core.errors import InvalidArgument

from pydanube.message import Message
from pydanube.routing import Router, Routing


def unstored(
    messages: Iterable[Message], stored: Sequence[int], routing: Routing, *, topic: str
) -> Iterator[Message]:
    """Yield the messages that are not among the first `stored` of their partition.

    Raises:
        InvalidArgument: one has no key, and the topic has partitions, so that its partition is not always the same.
    """
    router, left = Router(routing, len(stored)), [*stored]
    for message in messages:
        if message.key is None and len(left) > 1:
            raise InvalidArgument(
                f"{topic} has {len(left)} partitions, and a message has no key: give each one a key, so that its partition "
                "is always the same",
                field="key",
                value=None,
            )
        partition = router.pick(message.key, None)
        if left[partition]:
            left[partition] -= 1
        else:
            yield message
