"""Verify the signatures of webhook senders: GitHub, Stripe, and Standard Webhooks (standardwebhooks.com, symmetric keys).

All three sign the body with HMAC-SHA256. Stripe and Standard Webhooks sign the time of sending too, so that a request that was
recorded cannot be sent again later.
"""

from __future__ import annotations

import base64
import binascii
import hmac
from collections.abc import Callable, Mapping, Sequence
from typing import Final, Literal

Scheme = Literal["github", "stripe", "standard_webhooks"]
Headers = Mapping[bytes, bytes]
_MOST_SIGNATURES: Final = 20  # of one request. Senders that change their key show two


def key_of(scheme: Scheme, secret: str) -> bytes:
    """Return the bytes of a key as its sender shows it.

    Raises:
        ValueError: the secret has another form. The message contains the form.
    """
    if scheme != "standard_webhooks":
        return secret.encode()
    try:
        return base64.b64decode(secret.removeprefix("whsec_"), validate=True)
    except binascii.Error:
        raise ValueError("a secret of Standard Webhooks is whsec_ and base64") from None


def signed(
    scheme: Scheme, keys: Sequence[bytes], headers: Headers, body: bytes, *, now_s: float, tolerance_s: int
) -> bool:
    """Return whether the request is signed with one of the keys, at most `tolerance_s` seconds before or after `now_s`."""
    found = _SIGNED[scheme](headers)
    if found is None:
        return False
    prefix, time_s, signatures = found
    if time_s is not None and abs(now_s - time_s) > tolerance_s:
        return False
    wanted = [hmac.digest(key, prefix + body, "sha256") for key in keys]
    pairs = [(one, other) for one in wanted for other in signatures[:_MOST_SIGNATURES]]
    return any([hmac.compare_digest(one, other) for one, other in pairs])  # noqa: C419  # all, in constant time


#: the bytes signed before the body, the time of sending, the signatures
_Shown = tuple[bytes, int | None, list[bytes]]


def _github(headers: Headers) -> _Shown | None:
    return b"", None, _hex(headers.get(b"x-hub-signature-256", b"").removeprefix(b"sha256="))


def _stripe(headers: Headers) -> _Shown | None:
    parts = [part.strip().partition(b"=") for part in headers.get(b"stripe-signature", b"").split(b",")]
    times = [value for name, _, value in parts if name == b"t"]
    if len(times) != 1 or (time_s := _seconds(times[0])) is None:
        return None
    return times[0] + b".", time_s, [one for name, _, value in parts if name == b"v1" for one in _hex(value)]


def _standard(headers: Headers) -> _Shown | None:
    identity, time = headers.get(b"webhook-id", b""), headers.get(b"webhook-timestamp", b"")
    time_s = _seconds(time)
    if not identity or time_s is None:
        return None
    shown = [each.partition(b",") for each in headers.get(b"webhook-signature", b"").split()]
    found = [one for version, _, value in shown if version == b"v1" for one in _base64(value)]
    return identity + b"." + time + b".", time_s, found


_SIGNED: Final[dict[Scheme, Callable[[Headers], _Shown | None]]] = {
    "github": _github,
    "stripe": _stripe,
    "standard_webhooks": _standard,
}


def _seconds(text: bytes) -> int | None:
    return int(text) if text.isdigit() and len(text) <= 12 else None


def _hex(text: bytes) -> list[bytes]:
    try:
        return [binascii.unhexlify(text)]
    except binascii.Error:
        return []


def _base64(text: bytes) -> list[bytes]:
    try:
        return [base64.b64decode(text, validate=True)]
    except binascii.Error:
        return []
