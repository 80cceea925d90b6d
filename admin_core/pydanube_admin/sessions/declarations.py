"""The operations on connected producers and consumers."""

from __future__ import annotations

from typing import Final

from pydanube_admin.effect import Effect
from pydanube_admin.models import Page
from pydanube_admin.operation import Example, Operation
from pydanube_admin.sessions.handlers import (
    disconnect_consumer,
    disconnect_producer,
    forecast_disconnect_consumer,
    forecast_disconnect_producer,
    list_consumers,
    list_producers,
)
from pydanube_admin.sessions.models import (
    ConsumerItem,
    Disconnected,
    DisconnectRequest,
    ListSessionsRequest,
    ProducerItem,
)

SESSION_OPERATIONS: Final = (
    Operation(
        name="producers.list",
        tool="list_producers",
        title="List producers",
        effect=Effect.READ,
        permission="producers:read",
        reversible=None,
        summary="List connected producers.",
        request=ListSessionsRequest,
        result=Page[ProducerItem],
        handler=list_producers,
        examples=(Example(arguments={"topic": "orders"}, note="of one topic"),),
        default_profile=False,
    ),
    Operation(
        name="producers.disconnect",
        tool="disconnect_producer",
        title="Disconnect a producer",
        effect=Effect.CHANGE,
        permission="producers:disconnect",
        reversible=False,
        summary="End a producer's connection; it may connect again.",
        request=DisconnectRequest,
        result=Disconnected,
        handler=disconnect_producer,
        forecast=forecast_disconnect_producer,
        examples=(Example(arguments={"id": "1732276800000001"}, note="by its id in producers.list"),),
        default_profile=False,
    ),
    Operation(
        name="consumers.list",
        tool="list_consumers",
        title="List consumers",
        effect=Effect.READ,
        permission="consumers:read",
        reversible=None,
        summary="List connected consumers of subscriptions with what they hold.",
        request=ListSessionsRequest,
        result=Page[ConsumerItem],
        handler=list_consumers,
        examples=(Example(arguments={"topic": "orders"}, note="of one topic"),),
        default_profile=False,
    ),
    Operation(
        name="consumers.disconnect",
        tool="disconnect_consumer",
        title="Disconnect a consumer",
        effect=Effect.CHANGE,
        permission="consumers:disconnect",
        reversible=False,
        summary="End a consumer's connection; what it held goes to others. It may connect again.",
        request=DisconnectRequest,
        result=Disconnected,
        handler=disconnect_consumer,
        forecast=forecast_disconnect_consumer,
        examples=(Example(arguments={"id": "42"}, note="by its id in consumers.list"),),
        default_profile=False,
    ),
)
