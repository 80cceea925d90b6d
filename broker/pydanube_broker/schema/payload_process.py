"""Check payloads against a costly JSON Schema in a process of its own.

The library does not release the interpreter lock, so it would block the broker from a thread as well as in the loop. A
worker process is killed at the time limit. The next check starts another.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

import anyio
import anyio.to_process
from anyio.lowlevel import RunVar
from pydanube_core.errors import PayloadInvalid

from pydanube_broker.schema.json_text import loads_strict

if TYPE_CHECKING:
    from pydanube_broker.schema.json_schema.payload import JsonPayload

LIMIT_S: Final = 5.0
WORKERS: Final = 2

_limiter: RunVar[anyio.CapacityLimiter] = RunVar("pydanube_json_schema_workers")


async def check_apart(schema: bytes, payload: bytes, *, limit_s: float = LIMIT_S) -> None:
    """Check a payload in a worker process. Raises `PayloadInvalid` if it does not conform or the check exceeds `limit_s`."""
    limiter = _limiter.get(None)
    if limiter is None:
        limiter = anyio.CapacityLimiter(WORKERS)
        _limiter.set(limiter)
    async with limiter:
        failure: tuple[str, dict[str, Any]] | None = (_too_long(limit_s), {"path": "/"})
        with anyio.move_on_after(limit_s):
            try:
                failure = await anyio.to_process.run_sync(_failure, schema, payload, cancellable=True)
            except anyio.BrokenWorkerProcess:
                failure = (
                    "the payload could not be checked against its schema: the check ended its process",
                    {},
                )
    if failure is not None:
        message, details = failure
        raise PayloadInvalid(message, **{"field": "payload", "value": None, **details})


def _too_long(limit_s: float) -> str:
    return (
        f"the payload could not be checked against its JSON Schema in {limit_s:g} s: send less in one message, or "
        "simplify the schema"
    )


def _failure(schema: bytes, payload: bytes) -> tuple[str, dict[str, Any]] | None:
    """Check a payload, in the worker process. Return None if it conforms, otherwise message and details."""
    try:
        _check(schema).check(payload)
    except PayloadInvalid as error:
        return error.message, dict(error.details)
    return None


@lru_cache(maxsize=32)
def _check(schema: bytes) -> JsonPayload:
    # Imported here, as in `formats`: only the worker process needs the library
    from pydanube_broker.schema.json_schema.document import parse_json_schema
    from pydanube_broker.schema.json_schema.payload import JsonPayload

    return JsonPayload(parse_json_schema(loads_strict(schema))[1])
