"""The relay of a broker, made from its settings."""

from __future__ import annotations

import ssl
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from pydanube_storage.metadata import MetadataStore

from pydanube_broker.relay.links import Links
from pydanube_broker.relay.relay import Relay
from pydanube_broker.serving.registry import Registry
from pydanube_broker.settings import Settings
from pydanube_broker.settings_security import Tls


def open_relay(
    registry: Registry, settings: Settings, spawn: Callable[[Coroutine[Any, Any, None]], None]
) -> Relay | None:
    """The relay of one broker of several; None of a broker alone."""
    if not registry.ownership.several:
        return None
    links = Links(spawn, lambda: _client_context(settings.tls))
    return Relay(registry, links, streams=settings.server.connect_url is not None)


async def join(relay: Relay | None, store: MetadataStore, stack: AsyncExitStack) -> None:
    """Begin to carry calls, until the stack is closed; nothing to do for a broker alone. Raises `StoreUnavailable`."""
    if relay is not None:
        stack.callback(relay.close)
        await relay.join(store)


def _client_context(tls: Tls) -> ssl.SSLContext:
    """As a client of the other brokers: their authority is that of `client_ca`, or one the system knows."""
    context = ssl.create_default_context(cafile=None if tls.client_ca is None else Path(tls.client_ca))
    context.set_alpn_protocols(["h2"])
    if tls.cert is not None and tls.key is not None:
        context.load_cert_chain(tls.cert, tls.key)
    return context
