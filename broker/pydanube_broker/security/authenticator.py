"""Authenticate a caller, by an API token, a JSON web token, a client's certificate, or as the operator on this machine.

If authentication is `required`, other callers are refused. If it is `optional`, a caller without a valid credential is
accepted as anonymous and counted, so that the number of future refusals is visible before the setting changes.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from pydanube_core.errors import Unauthenticated
from pydanube_core.recent import RecentDict
from pydanube_core.security.api_tokens import is_api_token, verify
from pydanube_core.security.identity import ANONYMOUS, OPERATOR, RELAYED_PROOF, Identity
from pydanube_core.security.permissions import Principal

from pydanube_broker.rpc.caller import Peer
from pydanube_broker.security.access_records import AccessRecords
from pydanube_broker.security.jwt_keys import JwtVerifier

log = logging.getLogger("pydanube.security")

MOST_ADDRESSES: Final = 4096  # remembered addresses. The longest quiet one is replaced by a new one
FORGOTTEN_AFTER_S: Final = 60.0
FREE: Final = 3  # failures without a delay: a wrong file, an old environment
STEPS: Final = 3  # doublings, up to the longest delay


@dataclass(slots=True)
class _Failures:
    count: int
    last_s: float


class FailedLogins:
    """Wrong credentials by address: how long the next refusal is delayed, and which are logged.

    A token of 256 random bits cannot be guessed, but attempts should cost the broker little, and should be visible. A
    caller with a valid credential is not delayed, even from the same address. `longest_s`: the longest delay. Times are
    those of a clock that does not step.
    """

    def __init__(self, longest_s: float) -> None:
        self._longest_s = longest_s
        self._found: RecentDict[str, _Failures] = RecentDict(MOST_ADDRESSES)

    def note(self, address: str, now_s: float) -> int | None:
        """Count a failure of the address. Return the count if it is to be logged (the 1st, 10th, 100th …), else None."""
        found = self._found.get(address)
        if found is None or now_s - found.last_s > FORGOTTEN_AFTER_S:
            found = _Failures(0, now_s)
        found.count += 1
        found.last_s = now_s
        self._found[address] = found
        return found.count if str(found.count).strip("0") == "1" else None

    def wait_s(self, address: str, now_s: float) -> float:
        """Return the seconds by which a refusal to that address is delayed."""
        found = self._found.get(address)
        if found is None or found.count <= FREE or now_s - found.last_s > FORGOTTEN_AFTER_S:
            return 0.0
        doubled = min(found.count - FREE - 1, STEPS)
        return self._longest_s * float(2 ** (doubled - STEPS))


class Authenticator:
    """See the module.

    Args:
        refused: counts actual refusals, or those that `required` would make, by kind of credential.
        connections: becomes `opened`, which counts a connection of an authenticated caller. Its result is called at the
            end.
    """

    def __init__(
        self,
        access_records: AccessRecords,
        jwt: JwtVerifier | None,
        *,
        required: bool,
        refused: Counter[str],
        failed: FailedLogins,
        connections: Callable[[Identity], Callable[[], None]],
    ) -> None:
        self.required = required
        self.refused = refused
        #: Called with failed logins that are worth a record: address, number of failures from there.
        self.on_failed: Callable[[str, int], None] = lambda address, count: None
        self.opened = connections
        self._failed = failed
        self._access_records = access_records
        self._jwt = jwt

    def identify(self, authorization: str | None, peer: Peer) -> Identity:
        """Return the caller's identity. Raises `Unauthenticated` if one is required and missing."""
        try:
            identity = self._identify(authorization, peer)
            self.check(identity)
            return identity
        except Unauthenticated:
            if authorization is None:
                self.refused["no_identity"] += 1
            else:
                self.note_failure("credential", peer)
            if self.required:
                raise
            return ANONYMOUS

    def wait_s(self, peer: Peer) -> float:
        """Return the seconds by which a refusal to that peer is delayed. Wrong credentials of its address add to it."""
        return self._failed.wait_s(peer.host, time.monotonic())

    def note_failure(self, what: str, peer: Peer) -> None:
        """Count wrong credentials from the peer's address."""
        self.refused[what] += 1
        count = self._failed.note(peer.host, time.monotonic())
        if count is not None:
            log.warning("login_failed", extra={"address": peer.host, "failures": count})
            self.on_failed(peer.host, count)

    def check(self, identity: Identity) -> None:
        """Check that the credential is still valid. Raises `Unauthenticated`. Cheap, because every call does it."""
        if identity.expires_at_s is not None and time.time() >= identity.expires_at_s:
            raise Unauthenticated("the token has expired. Get a new one", method=identity.method)
        if identity.method == "token":
            if identity.credential not in self._access_records.tokens:
                raise Unauthenticated("the token was revoked. Get another from an admin")
            self._access_records.used.add(identity.credential)
        if self._access_records.revocations.cover(identity):
            raise Unauthenticated(
                "the credential was revoked. Get another from an admin", method=identity.method
            )
        if identity.method == "jwt" and self._jwt is not None and identity.proof is not RELAYED_PROOF:
            self._jwt.check(identity)

    def _identify(self, authorization: str | None, peer: Peer) -> Identity:
        if peer.local:
            return OPERATOR
        if authorization is not None:
            scheme, _, token = authorization.partition(" ")
            if scheme.lower() != "bearer" or not token.strip():
                raise Unauthenticated("authorization: write `Bearer <token>`")
            return self._by_token(token.strip())
        if peer.certificate is not None:
            return Identity(
                principal=Principal(certificate_name(peer.certificate)),
                method="certificate",
                credential=str(peer.certificate.get("serialNumber", "")),
            )
        raise Unauthenticated(
            "this broker requires authentication: show a token (--token, DANUBE_TOKEN, connect(token=…)) or a client's "
            "certificate (--cert, --tls-key)"
        )

    def _by_token(self, token: str) -> Identity:
        if is_api_token(token):
            return verify(token, self._access_records.tokens, now_ms=int(time.time() * 1000))
        if self._jwt is None:
            raise Unauthenticated(
                "the token is none of this broker's, and it takes no others (auth.jwt_keys, auth.jwks_url)"
            )
        return self._jwt.verify(token)


def certificate_name(certificate: Mapping[str, Any]) -> str:
    """Return the principal of a verified certificate: its first URI or e-mail address, else its common name.

    Raises `Unauthenticated`: it has no name, or several.
    """
    for kind in ("URI", "email"):
        found = [value for name, value in certificate.get("subjectAltName", ()) if name == kind]
        if found:
            return _one(found)
    return _one(
        [value for part in certificate.get("subject", ()) for name, value in part if name == "commonName"]
    )


def _one(names: list[str]) -> str:
    if len(names) != 1 or not names[0].isprintable() or not 0 < len(names[0]) <= 256:
        raise Unauthenticated(
            "the client's certificate names no principal, or several: give it one common name or URI"
        )
    return names[0]
