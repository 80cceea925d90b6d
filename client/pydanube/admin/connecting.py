"""Connect to a cluster for administration."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

from pydanube.addresses import admin_address
from pydanube.admin.calling import CALL_S, OperationCaller
from pydanube.admin.generated.operations import Admin
from pydanube.admin.generated.sync_operations import SyncAdmin
from pydanube.blocking.loop import Loop
from pydanube.wire.bearer import TokenSource
from pydanube.wire.endpoint import Tls
from pydanube.wire.ops_channel import OpsChannel


@asynccontextmanager
async def connect_admin(
    url: str | None = None,
    *,
    token: TokenSource | None = None,
    tls: Tls | None = None,
    principal: str | None = None,
    timeout_s: float = CALL_S,
) -> AsyncIterator[Admin]:
    """Connect to a cluster's operations, as `async with`.

    Args:
        url: of the broker's client port or admin port. None: DANUBE_ADMIN_ENDPOINT, DANUBE_BROKER_URL, else
            http://127.0.0.1:50051.
        token, tls: as for `pydanube.connect`.
        principal: the caller, for the audit. None: DANUBE_PRINCIPAL, else `<user>@<host>`.
        timeout_s: for a call. Operations that take long have an hour.
    """
    caller = OperationCaller(_channel(url, token, tls), principal=principal, timeout_s=timeout_s)
    try:
        yield Admin(caller)
    finally:
        await caller.aclose()


@contextmanager
def connect_admin_sync(
    url: str | None = None,
    *,
    token: TokenSource | None = None,
    tls: Tls | None = None,
    principal: str | None = None,
    timeout_s: float = CALL_S,
) -> Iterator[SyncAdmin]:
    """`connect_admin` without await. `pydanube.sync` exports it under that name."""
    caller, loop = (
        OperationCaller(_channel(url, token, tls), principal=principal, timeout_s=timeout_s),
        Loop(),
    )
    try:
        yield SyncAdmin(loop, Admin(caller))
    finally:
        loop.call(caller.aclose())
        loop.close()


def _channel(url: str | None, token: TokenSource | None, tls: Tls | None) -> OpsChannel:
    return OpsChannel(admin_address(url, None, os.environ), field="url", token=token, tls=tls)
