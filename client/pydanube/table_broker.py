"""The calls that a topic as a table makes to a broker, without asyncio (`pydanube_storage.topics.query.Broker`)."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from pydanube_core.ops_call import call_request

from pydanube.blocking.loop import Loop
from pydanube.patience import patiently
from pydanube.principal import named_principal
from pydanube.retry import Retry
from pydanube.wire.ops_channel import OpsChannel

if TYPE_CHECKING:
    from pydanube.decoded_batch import DecodedBatch

FACE = "python"


@dataclass(frozen=True, slots=True, kw_only=True)
class TableBroker:
    """A broker by its addresses. It is picklable, and has no token: that is found where the calls are made.

    Attributes:
        broker_url: for messages.
        admin_url: for operations.
        retry: for operations that fail and may pass. None raises at the first failure.
    """

    broker_url: str
    admin_url: str
    retry: Retry | None = None

    def ask(
        self, operation: str, arguments: Mapping[str, Any], *, timeout_s: float = 10.0
    ) -> Mapping[str, Any]:
        """Return the result of an operation that reads. Raises `ClusterError`."""
        once = partial(self._ask, operation, arguments, timeout_s)
        return once() if self.retry is None else patiently(once, self.retry)

    def _ask(self, operation: str, arguments: Mapping[str, Any], timeout_s: float) -> Mapping[str, Any]:
        loop = Loop()
        try:
            result = json.loads(loop.call(self._call(operation, arguments, timeout_s)))
        finally:
            loop.close()
        assert isinstance(result, dict)
        return result

    async def _call(self, operation: str, arguments: Mapping[str, Any], timeout_s: float) -> bytes:
        channel = OpsChannel(self.admin_url)
        try:
            principal = named_principal(None, shows_identity=channel.shows_identity)
            request = call_request(operation, arguments, principal=principal, face=FACE)
            return await channel.call(request, timeout_s=timeout_s, reads=True)
        finally:
            await channel.aclose()

    def first_offset(self, topic: str, start: str, *, end: int) -> int | None:
        """Return the offset of the first message from a position on and below `end`. None if there is none."""
        from pydanube.sync import connect

        with (
            connect(self.broker_url) as client,
            client.reader(topic, start=start, stop=f"offset:{end}") as reader,
        ):
            return next((message.offset for message in reader), None)

    def tail(self, topic: str, start: int, end: int) -> Iterator[DecodedBatch]:
        """Yield the batches with messages of `[start, end)`, by a plain reader. Raises `ClusterError`."""
        from pydanube.sync import connect

        with (
            connect(self.broker_url) as client,
            client.reader(topic, start=f"offset:{start}", stop=f"offset:{end}") as reader,
        ):
            for batch in reader.batches():
                yield batch._inner._delivered.batch
