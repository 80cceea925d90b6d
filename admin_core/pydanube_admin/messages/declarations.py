"""The operations on messages and dead letters."""

from __future__ import annotations

from typing import Final

from pydanube_admin.effect import Effect
from pydanube_admin.messages.changes import (
    forecast_publish,
    forecast_replay_dead_letters,
    list_dead_letters,
    publish_message,
    replay_dead_letters,
)
from pydanube_admin.messages.models import (
    DeadLetterItem,
    ListDeadLettersRequest,
    PeekedMessages,
    PeekRequest,
    PublishedMessage,
    PublishRequest,
    ReplayDeadLettersRequest,
    ReplayedDeadLetters,
    SearchPage,
    SearchRequest,
)
from pydanube_admin.messages.reading import peek_messages, search_messages
from pydanube_admin.models import Page
from pydanube_admin.operation import Example, Operation

MESSAGE_OPERATIONS: Final = (
    Operation(
        name="messages.peek",
        tool="peek_messages",
        title="Peek at messages",
        effect=Effect.READ,
        permission="messages:read",
        reversible=None,
        summary="Show messages from a position on; nothing is consumed.",
        request=PeekRequest,
        result=PeekedMessages,
        handler=peek_messages,
        examples=(
            Example(arguments={"topic": "orders"}, note="the oldest ten"),
            Example(arguments={"topic": "orders", "from": "offset:42", "limit": 1}, note="one message"),
        ),
        default_profile=True,
    ),
    Operation(
        name="messages.search",
        tool="search_messages",
        title="Search messages",
        effect=Effect.READ,
        permission="messages:read",
        reversible=None,
        summary="Find messages by key, attribute or text in a range of a topic; pages go on where the last ended.",
        request=SearchRequest,
        result=SearchPage,
        handler=search_messages,
        examples=(
            Example(arguments={"topic": "orders", "contains": "refund", "from": "time:-1h"}, note="by text"),
        ),
        default_profile=False,
    ),
    Operation(
        name="messages.publish",
        idempotent=False,
        tool="publish_message",
        title="Publish a message",
        effect=Effect.CREATE,
        permission="messages:publish",
        reversible=False,
        summary="Publish one message; it is on stable storage when the answer comes.",
        request=PublishRequest,
        result=PublishedMessage,
        handler=publish_message,
        forecast=forecast_publish,
        required_flags=("payload",),
        text_argument="payload",
        examples=(Example(arguments={"topic": "orders", "payload": "hello"}, note="a test message"),),
        default_profile=False,
    ),
    Operation(
        name="dead_letters.list",
        tool="list_dead_letters",
        title="List dead letters",
        effect=Effect.READ,
        permission="dead_letters:read",
        reversible=None,
        summary="List messages of a subscription that failed too often, with why.",
        request=ListDeadLettersRequest,
        result=Page[DeadLetterItem],
        handler=list_dead_letters,
        examples=(Example(arguments={"topic": "orders", "subscription": "billing"}, note="all of them"),),
        default_profile=False,
    ),
    Operation(
        name="dead_letters.replay",
        idempotent=False,
        tool="replay_dead_letters",
        title="Replay dead letters",
        effect=Effect.CHANGE,
        permission="dead_letters:replay",
        reversible=False,
        summary="Copy dead letters back to the topic they came from, with the attribute x-replayed-from.",
        request=ReplayDeadLettersRequest,
        result=ReplayedDeadLetters,
        handler=replay_dead_letters,
        forecast=forecast_replay_dead_letters,
        examples=(
            Example(
                arguments={"topic": "orders", "subscription": "billing", "offsets": "0,2"}, note="two of them"
            ),
        ),
        default_profile=False,
    ),
)
