"""Send an operation to the broker's admin port and return its result: `danube.ops/Call`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from pydanube_core.calling_program import CallingProgram, package_version
from pydanube_core.ops_call import LONG_RUNNING_S, call_request

from pydanube.admin.values import ResultT
from pydanube.principal import named_principal
from pydanube.wire.ops_channel import OpsChannel

FACE: Final = "python"
_PROGRAM: Final = CallingProgram(name="pydanube", version=package_version())
CALL_S: Final = 10.0


class OperationCaller:
    """Calls operations from an asyncio program."""

    def __init__(
        self, channel: OpsChannel, *, principal: str | None = None, timeout_s: float = CALL_S
    ) -> None:
        self._channel = channel
        self._principal = named_principal(principal, shows_identity=channel.shows_identity)
        self._timeout_s = timeout_s

    async def call(
        self,
        operation: str,
        arguments: Mapping[str, Any],
        kind: type[ResultT],
        *,
        long_running: bool = False,
        reads: bool = False,
    ) -> ResultT:
        """Call one operation. If cancelled, a change may have been made or not. Raises any `ClusterError`.

        Args:
            arguments: those of a method, as its `locals()` has them: with `self`, and `from_` for `from`. None is left
                out, because the broker has the defaults.
        """
        given = {
            name.removesuffix("_"): value
            for name, value in arguments.items()
            if value is not None and name != "self"
        }
        request = call_request(operation, given, principal=self._principal, face=FACE, program=_PROGRAM)
        timeout_s = max(self._timeout_s, LONG_RUNNING_S) if long_running else self._timeout_s
        return kind.model_validate_json(await self._channel.call(request, timeout_s=timeout_s, reads=reads))

    async def aclose(self) -> None:
        await self._channel.aclose()
