"""The way of an operation to the broker's admin port and back: `danube.ops/Call`."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, Final

import grpc
from pydanube_core.errors import ClusterError
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
from pydanube_core.services import OPS

from pydanube.admin.values import ResultT
from pydanube.principal import default_principal

FACE: Final = "python"


class _Terms:
    """What asynchronous and plain calls have in common."""

    def __init__(self, url: str | None, *, principal: str | None, timeout_s: float) -> None:
        self.url = url or os.environ.get("DANUBE_ADMIN_ENDPOINT") or DEFAULT_ADMIN_URL
        self.principal = principal or default_principal()
        self.timeout_s = timeout_s
        self.target = call_target(self.url, field="url")

    def request(self, operation: str, arguments: Mapping[str, Any]) -> CallRequest:
        """What was not given (None) is left out: the broker has the defaults."""
        given = {name: value for name, value in arguments.items() if value is not None}
        return call_request(operation, given, principal=self.principal, face=FACE)

    def failure(self, error: Any, operation: str, timeout_s: float) -> ClusterError:
        """A transport's status as one of our errors."""
        return call_failed(
            error.code().name, error.details(), url=self.url, operation=operation, timeout_s=timeout_s
        )

    def limit_s(self, *, long_running: bool) -> float:
        return max(self.timeout_s, LONG_RUNNING_S) if long_running else self.timeout_s


class Caller(_Terms):
    """Calls from asyncio."""

    def __init__(self, url: str | None, *, principal: str | None, timeout_s: float) -> None:
        super().__init__(url, principal=principal, timeout_s=timeout_s)
        self._channel = grpc.aio.insecure_channel(self.target, options=CHANNEL_OPTIONS)
        self._method = self._channel.unary_unary(
            OPS["Call"].path,
            request_serializer=CallRequest.SerializeToString,
            response_deserializer=CallResponse.FromString,
        )

    async def call(
        self,
        operation: str,
        arguments: Mapping[str, Any],
        kind: type[ResultT],
        *,
        long_running: bool = False,
    ) -> ResultT:
        """One operation. Cancelled, a change may have been made or not. Raises any `ClusterError`."""
        request = self.request(operation, arguments)
        limit_s = self.limit_s(long_running=long_running)
        try:
            response = await self._method(request, timeout=limit_s)
        except grpc.aio.AioRpcError as error:
            raise self.failure(error, operation, limit_s) from error
        return kind.model_validate_json(call_result(response))

    async def aclose(self) -> None:
        await self._channel.close()


class SyncCaller(_Terms):
    """Calls that wait; from any thread."""

    def __init__(self, url: str | None, *, principal: str | None, timeout_s: float) -> None:
        super().__init__(url, principal=principal, timeout_s=timeout_s)
        self._channel = grpc.insecure_channel(self.target, options=CHANNEL_OPTIONS)
        self._method = self._channel.unary_unary(
            OPS["Call"].path,
            request_serializer=CallRequest.SerializeToString,
            response_deserializer=CallResponse.FromString,
        )

    def call(
        self,
        operation: str,
        arguments: Mapping[str, Any],
        kind: type[ResultT],
        *,
        long_running: bool = False,
    ) -> ResultT:
        """As `Caller.call`."""
        request = self.request(operation, arguments)
        limit_s = self.limit_s(long_running=long_running)
        try:
            response = self._method(request, timeout=limit_s)
        except grpc.RpcError as error:
            raise self.failure(error, operation, limit_s) from error
        return kind.model_validate_json(call_result(response))

    def close(self) -> None:
        self._channel.close()
