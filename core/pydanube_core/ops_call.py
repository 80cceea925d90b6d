"""`danube.ops/Call` as its callers see it: request, answer, address and failures (`pydanube.wire.ops_channel` carries it)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import urlsplit

from pydanube_core.addresses import SCHEMES
from pydanube_core.calling_program import UNNAMED, CallingProgram, current_program
from pydanube_core.errors import (
    ClusterError,
    DeadlineExceeded,
    Internal,
    InvalidArgument,
    MessageTooLarge,
    NotImplementedYet,
    PermissionDenied,
    Unauthenticated,
    Unavailable,
)
from pydanube_core.generated.danube_ops_pb2 import CallRequest, CallResponse

# For operations declared as long, unless the caller gives a time. His leaving ends them sooner
LONG_RUNNING_S: Final = 3600.0
# Method by which a broker forwards a call to another
CARRIED_CALL: Final = "/danube.relay.Administration/Call"

UNCERTAIN: Final = "A change may have been made or not: look before you repeat it"
# Details of an error of the connection
SENT: Final = "sent"  # how the call ended after the request was on its way
HTTP_STATUS: Final = "http_status"  # of an answer that is not gRPC, such as a proxy's
LIMIT_BYTES: Final = "limit_bytes"  # of an answer that is larger


def call_target(admin_url: str, *, field: str = "admin") -> tuple[str, bool]:
    """Return `host:port` of a URL, and whether it means TLS: `http`, or `https`; `danube`, `danubes` mean the same.

    A broker's port for producers and consumers carries out operations, too, so the client's address is one.

    Raises `InvalidArgument` if it is not such a URL. `field` names the argument.
    """
    if admin_url.startswith("unix:"):  # a socket on this machine
        return admin_url, False
    parts = urlsplit(admin_url if "://" in admin_url else f"http://{admin_url}")
    try:
        port = parts.port
    except ValueError:
        port = None
    if parts.scheme not in SCHEMES or not parts.hostname or port is None or parts.path not in ("", "/"):
        raise InvalidArgument(
            f"{admin_url!r} is not an admin address; write http://host:port, such as http://127.0.0.1:50051",
            field=field,
            value=admin_url,
        )
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    return f"{host}:{port}", SCHEMES[parts.scheme]


def call_request(
    operation: str,
    arguments: Mapping[str, Any] | None,
    *,
    principal: str,
    face: str,
    plan_token: str = "",
    read_only: bool = False,
    program: CallingProgram = UNNAMED,
) -> CallRequest:
    """Encode the request of one call. Raises `InvalidArgument` if the arguments cannot be JSON.

    Args:
        program: the program that calls, unless `current_program` names another one.
    """
    program = (current_program.get() or program).cleaned()
    try:
        body = json.dumps(dict(arguments or {}), allow_nan=False, default=dict)
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidArgument(
            "the arguments are not a JSON object: pass strings, numbers, booleans, lists and objects",
            field="arguments",
        ) from error
    return CallRequest(
        operation=_text(operation),
        arguments=body.encode(),
        plan_token=_text(plan_token),
        principal=_text(principal),
        face=face,
        read_only=read_only,
        client_name=_text(program.name),
        client_version=_text(program.version),
        by=program.by,
    )


def _text(value: str) -> str:
    """Replace lone surrogates, which a protobuf string cannot have. A name with one is unknown anyway."""
    return value.encode("utf-8", "replace").decode()


def call_result(response: CallResponse) -> bytes:
    """Return the result's JSON. Raises the `ClusterError` that the operation answered."""
    match response.WhichOneof("outcome"):
        case "result":
            return bytes(response.result)
        case "error":
            raise ClusterError.from_json(response.error.decode())
        case _:
            raise Internal("danube.ops answered neither result nor error")


def call_failed(
    error: ClusterError, *, url: str, operation: str, timeout_s: float, reads: bool = False
) -> ClusterError:
    """Return the error for a call that the admin port did not answer, in words for its caller.

    Args:
        reads: the operation changes nothing.
    """
    match error:
        case DeadlineExceeded():
            return no_answer(url=url, operation=operation, timeout_s=timeout_s, reads=reads)
        case Unavailable() if "tls" in error.details:
            return error
        case Unavailable() if SENT in error.details:
            return _cut_off(error, url=url, operation=operation, reads=reads)
        case Unauthenticated() | PermissionDenied():  # a proxy's
            return type(error)(f"{operation} at {url} failed: {error.message}", url=url)
        case Unavailable():
            return Unavailable(
                f"no broker answers at {url}; start one with `danube up`, or name another with --admin "
                "or DANUBE_ADMIN_ENDPOINT",
                next=[
                    {
                        "operation": None,
                        "tool": None,
                        "command": "danube up",
                        "arguments": {},
                        "why": "starts a broker on this machine",
                    }
                ],
                retry_after_ms=1000,
                url=url,
            )
        case NotImplementedYet():
            return NotImplementedYet(
                f"the server at {url} does not offer danube.ops; is this a pydanube broker? Its admin port (50051) "
                "does in any case: name it with --admin",
                url=url,
            )
        case _:
            return Internal(f"{operation} at {url} failed: {error.message}", url=url)


def _cut_off(error: Unavailable, *, url: str, operation: str, reads: bool) -> ClusterError:
    """Return the error for a call that was sent and got no answer, or none that can be read."""
    status, limit = error.details.get(HTTP_STATUS), error.details.get(LIMIT_BYTES)
    facts: dict[str, Any] = {"url": url}
    if limit is not None:
        what = f"the answer of {url} to {operation} is larger than {limit} bytes and was not read"
        facts[LIMIT_BYTES] = limit
    elif status is not None:
        cause = "a proxy without an answer of its broker" if status >= 500 else "a proxy, or another server"
        what = (
            f"{url} answered {operation} with HTTP status {status} and no answer of a broker, as {cause} does"
        )
        facts[HTTP_STATUS] = status
    else:
        what = f"the connection to {url} was lost before it answered {operation} ({error.details[SENT]})"
    if not reads:
        return Unavailable(f"{what}. {UNCERTAIN}", **facts, **unknown_outcome(operation))
    if limit is not None:
        remedy = "Narrow the call by its filters, or read in pages with a smaller limit"
        return MessageTooLarge(f"{what}. {remedy}", **facts)
    passes = status is None or status in (408, 425, 429) or status >= 500
    remedy = "Repeat it" if passes else "Is this the address of a broker, and what does the proxy allow?"
    return Unavailable(
        f"{what}. {remedy}", retry_after_ms=1000 if passes else None, retryable=passes, **facts
    )


def no_answer(*, url: str, operation: str, timeout_s: float, reads: bool = False) -> DeadlineExceeded:
    """Return the error for a call that timed out."""
    remedy = (
        "Repeat it, or allow more time with --timeout"
        if reads
        else f"{UNCERTAIN}, or allow more time with --timeout"
    )
    return DeadlineExceeded(
        f"{operation} at {url}: no answer within {timeout_s:g} s. {remedy}",
        url=url,
        timeout_s=timeout_s,
        **({} if reads else unknown_outcome(operation)),
    )


def unknown_outcome(operation: str) -> dict[str, Any]:
    """Return the facts of an error after which a change may have been made: not to be repeated, and where to look."""
    # Plans, undos and calls within a call are recorded under the name of the operation that they carry out.
    own = operation.partition(".")[0] not in ("plans", "changes", "operations", "peers")
    arguments = {"operation": operation} if own else {"effect": "change"}
    flags = "".join(f" --{name} {value}" for name, value in arguments.items())
    looks: tuple[tuple[Any, ...], ...] = (
        ("changes.list", "what_changed", "danube changes list", {}, "shows it if it was made, with its undo"),
        (
            *("audit.query", "query_audit", f"danube audit query{flags}", arguments),
            "shows whether the call arrived, and how it ended",
        ),
    )
    return {
        "outcome": "unknown",
        "retryable": False,
        "next": [
            dict(zip(("operation", "tool", "command", "arguments", "why"), each, strict=True))
            for each in looks
        ],
    }
