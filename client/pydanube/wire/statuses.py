"""The `ClusterError` for the status of a call, whatever carried it.

The broker's errors arrive whole in the streams' `Failure` messages. On unary calls they are in the trailing metadata
(`danube-error-bin`, JSON) or, failing that, in `CODE: message`. All other errors come from the transport.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from pydanube_core.errors import (
    CODES,
    ClusterError,
    DeadlineExceeded,
    Internal,
    NotImplementedYet,
    PermissionDenied,
    Unauthenticated,
    Unavailable,
    error_for,
)
from pydanube_core.ops_call import LIMIT_BYTES, SENT

ERROR_METADATA: Final = "danube-error-bin"


def not_reached(
    url: str,
    why: str,
    *,
    tls: bool = False,
    retryable: bool = True,
    sent: bool = False,
    limit_bytes: int | None = None,
) -> Unavailable:
    """Return the error for a broker that cannot be reached.

    Args:
        tls: the handshake failed, and `why` has the remedy.
        retryable: False for a certificate that is not trusted, which does not change while a program retries.
        sent: the broker may have received the request, and carried it out.
        limit_bytes: of an answer, if it is larger.
    """
    if tls:
        return Unavailable(
            f"no TLS with the broker at {url}: {why}", broker=url, tls=why, retryable=retryable
        )
    more: dict[str, Any] = {SENT: why} if sent else {}
    if limit_bytes is not None:
        more[LIMIT_BYTES] = limit_bytes
    return Unavailable(
        f"the broker at {url} cannot be reached ({why}). Is `danube up` running?", broker=url, **more
    )


def error_of(
    status: str, text: str, metadata: Iterable[tuple[str, str | bytes]], *, url: str
) -> ClusterError:
    """Return the error to raise.

    Args:
        status: gRPC's name of it, not `OK`.
        text: its message.
        metadata: of the trailers.
    """
    for key, value in metadata:
        if key == ERROR_METADATA:
            return ClusterError.from_json(
                value.decode(errors="replace") if isinstance(value, bytes) else value
            )
    code, separator, message = text.partition(": ")
    if separator and code in CODES:
        return error_for(code, message, {"broker": url})
    # From here on the error is of gRPC, not of the broker. A connection that breaks under a write has INTERNAL
    # ("Internal error from Core", RST_STREAM): the stream is lost, and a retry may help.
    what = f"the broker at {url} answered {status}: {text}"
    match status:
        case "UNIMPLEMENTED":
            return NotImplementedYet(f"{what}. Is it a pydanube broker?", broker=url)
        case "UNAUTHENTICATED":
            return Unauthenticated(what, broker=url)
        case "PERMISSION_DENIED":
            return PermissionDenied(what, broker=url)
        case "DEADLINE_EXCEEDED":
            return DeadlineExceeded(what, broker=url)
        case "INVALID_ARGUMENT":
            return Internal(what, broker=url)
    # Also a proxy's 502, 503 and 504 end here: the request may have passed the proxy.
    _, never_sent, why = text.rpartition("Failed to connect to remote host: ")  # before it: gRPC's addresses
    return not_reached(url, why or status, sent=not never_sent)
