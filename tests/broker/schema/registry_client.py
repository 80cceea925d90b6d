"""`danube_schema.SchemaRegistry` call by call, with nothing in between."""

from __future__ import annotations

from types import TracebackType
from typing import Any, Self

import grpc.aio
from pydanube_core.services import SCHEMA_REGISTRY

__all__ = ["RegistryClient"]


class RegistryClient:
    """`await client.RegisterSchema(subject="s", …)`: fields of the request in, the response out."""

    def __init__(self, url: str) -> None:
        self._channel = grpc.aio.insecure_channel(
            url.removeprefix("http://"), options=[("grpc.use_local_subchannel_pool", 1)]
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._channel.close()

    def __getattr__(self, name: str) -> Any:
        method = SCHEMA_REGISTRY[name]
        call = self._channel.unary_unary(
            method.path,
            request_serializer=method.request.SerializeToString,
            response_deserializer=method.response.FromString,
        )
        return lambda **fields: call(method.request(**fields))
