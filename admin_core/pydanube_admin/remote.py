"""The client of `danube.ops/Call`: how every face reaches the admin core.

A face never holds the admin core; it hands `danube.ops/Call` a request and gets a response, so that what may be done
is decided in one place. That goes over gRPC to the admin port; a face in the broker's own process may be given the entry
behind that port, which takes the same bytes. `OpsClient` is for asyncio (HTTP, MCP, console), `call_sync` for a command
that makes one call and ends.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self

from pydanube.principal import default_principal
from pydanube_core.generated.danube_ops_pb2 import CallRequest, CallResponse
from pydanube_core.ops_call import (
    CHANNEL_OPTIONS,
    DEFAULT_ADMIN_URL,
    LONG_RUNNING_S,
    call_failed,
    call_request,
    call_result,
    call_target,
)

from pydanube_admin.registry import OPERATIONS

if TYPE_CHECKING:
    from grpc import aio


OpsEntry = Callable[[bytes], Awaitable[bytes]]  # an encoded CallRequest to an encoded CallResponse

OPS_CALL: Final = "/danube.ops.Ops/Call"


class OpsClient:
    """Calls operations of one cluster. Makes its channel at the first call, in the loop of that call.

    Usable as an async context manager; `aclose` may be called more than once. With `read_only` the admin core
    refuses whatever is no read. `entry` is what the admin port would call, where that is in this process.
    """

    def __init__(
        self,
        admin_url: str = DEFAULT_ADMIN_URL,
        *,
        timeout_s: float = 10.0,
        principal: str | None = None,
        face: str = "cli",
        read_only: bool = False,
        entry: OpsEntry | None = None,
    ) -> None:
        self.admin_url = admin_url
        self.read_only = read_only
        self.face = face
        self.principal = principal or default_principal()
        self.timeout_s = timeout_s
        self._target = call_target(admin_url)
        self._entry = entry
        self._channel: aio.Channel | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        channel, self._channel = self._channel, None
        if channel is not None:
            await channel.close()

    async def call(
        self,
        operation: str,
        arguments: Mapping[str, Any] | None = None,
        *,
        plan_token: str = "",
        principal: str | None = None,
        timeout_s: float | None = None,
    ) -> dict[str, Any]:
        """Call one operation and return its result as a JSON object.

        Cancelled, or after DEADLINE_EXCEEDED, a change may have been made or not.

        Raises:
            ClusterError: what the operation answered; `Unavailable` if nobody listens at the address;
                `DeadlineExceeded` after `timeout_s`.
        """
        result = await self.call_json(
            operation, arguments, plan_token=plan_token, principal=principal, timeout_s=timeout_s
        )
        return _object(result)

    async def call_json(
        self,
        operation: str,
        arguments: Mapping[str, Any] | None = None,
        *,
        plan_token: str = "",
        principal: str | None = None,
        timeout_s: float | None = None,
    ) -> bytes:
        """`call`, with the result as the JSON it came as."""
        if timeout_s is None:
            timeout_s = max(self.timeout_s, LONG_RUNNING_S) if _long_running(operation) else self.timeout_s
        request = call_request(
            operation,
            arguments,
            principal=principal or self.principal,
            face=self.face,
            plan_token=plan_token,
            read_only=self.read_only,
        )
        if self._entry is not None:
            return call_result(await self._here(self._entry, request, operation, timeout_s))
        from grpc import aio  # with the first call: an MCP server lists its tools without

        if self._channel is None:
            self._channel = aio.insecure_channel(self._target, options=CHANNEL_OPTIONS)
        method = self._channel.unary_unary(
            OPS_CALL,
            request_serializer=CallRequest.SerializeToString,
            response_deserializer=CallResponse.FromString,
        )
        try:
            response = await method(request, timeout=timeout_s)
        except aio.AioRpcError as error:
            raise call_failed(
                error.code().name,
                error.details(),
                url=self.admin_url,
                operation=operation,
                timeout_s=timeout_s,
            ) from error
        return call_result(response)

    async def _here(
        self, entry: OpsEntry, request: CallRequest, operation: str, timeout_s: float
    ) -> CallResponse:
        """What the admin port would do: in time, or not at all."""
        deadline = asyncio.timeout(timeout_s)
        try:
            async with deadline:
                return CallResponse.FromString(await entry(request.SerializeToString()))
        except TimeoutError as error:
            if not deadline.expired():
                raise
            raise call_failed(
                "DEADLINE_EXCEEDED", None, url=self.admin_url, operation=operation, timeout_s=timeout_s
            ) from error


def _long_running(operation: str) -> bool:
    known = OPERATIONS.get(operation)
    return known is not None and known.long_running


def call_sync(
    admin_url: str,
    operation: str,
    arguments: Mapping[str, Any] | None = None,
    *,
    timeout_s: float = 10.0,
    principal: str | None = None,
    face: str = "cli",
    plan_token: str = "",
) -> dict[str, Any]:
    """Call one operation without asyncio; raises as `OpsClient.call` does."""
    request = call_request(
        operation,
        arguments,
        principal=principal or default_principal(),
        face=face,
        plan_token=plan_token,
    )
    import grpc

    with grpc.insecure_channel(call_target(admin_url), options=CHANNEL_OPTIONS) as channel:
        method = channel.unary_unary(
            OPS_CALL,
            request_serializer=CallRequest.SerializeToString,
            response_deserializer=CallResponse.FromString,
        )
        try:
            response = method(request, timeout=timeout_s)
        except grpc.RpcError as error:
            raise call_failed(
                error.code().name, error.details(), url=admin_url, operation=operation, timeout_s=timeout_s
            ) from error
    return _object(call_result(response))


def _object(body: bytes) -> dict[str, Any]:
    result = json.loads(body)
    assert isinstance(result, dict)
    return result
