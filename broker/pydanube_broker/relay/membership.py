"""Proofs between brokers that they belong to one cluster, by a secret kept in its metadata.

A relayed call carries its sender, and a keyed digest of sender and receiver, which only a broker that reads the
cluster's metadata can compute. An administrative call is sent in an envelope (`Seals`).
"""

from __future__ import annotations

import hmac
import json
import secrets
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, Final

from pydanube_core.errors import ClusterError, Overloaded, PermissionDenied
from pydanube_core.security.identity import RELAYED_PROOF, Identity, Maker
from pydanube_core.security.permissions import Principal
from pydanube_storage.metadata import MetadataStore

from pydanube_broker.cluster.keys import RELAY_SECRET
from pydanube_broker.records import Change, change
from pydanube_broker.rpc.routing import RELAYED
from pydanube_broker.topics.topic import CLOCK
from pydanube_broker.wall_clock import WitnessKind

#: validity of a seal, and the maximum difference between the clocks of two brokers
FRESH_MS: Final = 60_000
MOST_REMEMBERED: Final = 65_536  # seals of the last two minutes that were opened
_DIGEST: Final = 32
_LENGTH: Final = 4
_NONCE: Final = 16
_REMEMBERED: Final = 1024  # proofs, and clocks that differ


@dataclass(frozen=True, slots=True, kw_only=True)
class Envelope:
    """An opened envelope. `caller` is None if the sender has authorization off."""

    sender: str
    caller: Identity | None
    request: bytes


class Seals:
    """Makes and opens the seals of one broker, for administrative calls between brokers. Pure except for nonces.

    The receiver checks the permissions of the caller named by the sender, not those of the sender, so an attacker who
    could forge a seal could impersonate any caller. The key is the cluster's secret. A seal is valid for one receiver,
    for its content, for a minute by the receiver's clock, and once: replaying an intercepted seal fails. A receiver
    whose clock differs returns the difference with a digest, and the sender seals the call again (`differs`). Layout:
    digest (32 bytes), length of the head (4, big-endian), head (JSON), the request as its client sent it.

    Args:
        secret: the cluster's.
        me: this broker's id.
    """

    def __init__(self, secret: bytes, me: str) -> None:
        self._secret = secret
        self._me = me
        self.heard: Callable[[str, int], None] = lambda broker_id, at_ms: None  # called with a sender's time
        self._opened: OrderedDict[str, int] = OrderedDict()  # nonce → end of the seal's validity
        self._apart_ms: dict[str, int] = {}  # receiver → its clock minus ours, after a refusal for that

    def seal(self, receiver: str, caller: Identity | None, request: bytes, now_ms: int) -> bytes:
        """Enclose a request for another broker."""
        head = {
            "from": self._me,
            "to": receiver,
            "at_ms": now_ms,
            "apart_ms": self._apart_ms.get(receiver, 0),
            "nonce": secrets.token_hex(_NONCE),
            "caller": None if caller is None else _encoded(caller),
        }
        text = json.dumps(head).encode()
        body = len(text).to_bytes(_LENGTH, "big") + text + request
        return self._digest(body) + body

    def open(self, sealed: bytes, now_ms: int) -> Envelope:
        """
        Raises:
            PermissionDenied: no member sealed it, it is for another broker, it is not valid now, or it was opened
                before.
            Overloaded: too many were opened lately to detect repeated ones.
        """
        digest, body = sealed[:_DIGEST], sealed[_DIGEST:]
        if not hmac.compare_digest(digest, self._digest(body)):
            raise _refused("it does not prove that a broker of this cluster sent it")
        end = _LENGTH + int.from_bytes(body[:_LENGTH], "big")
        head: dict[str, Any] = json.loads(body[_LENGTH:end])
        if head["to"] != self._me:
            raise _refused("it is for another broker")
        apart_ms = now_ms - head["at_ms"]
        self.heard(head["from"], head["at_ms"])
        sealed_ms = head["at_ms"] + head.get("apart_ms", 0)  # a broker of an older build sends none
        if abs(now_ms - sealed_ms) > FRESH_MS:
            raise _refused(
                f"it was sealed {apart_ms // 1000} s ago by the clock of broker {head['from']}, and holds for "
                f"{FRESH_MS // 1000} s: set the clocks of both machines",
                apart_ms=apart_ms,
                apart_proof=self._apart_proof(digest, apart_ms),
            )
        self._note(head["nonce"], sealed_ms + FRESH_MS, now_ms)
        caller = head["caller"]
        return Envelope(
            sender=head["from"], caller=None if caller is None else _decoded(caller), request=body[end:]
        )

    def differs(self, receiver: str, sealed: bytes, details: Mapping[str, Any]) -> int | None:
        """Return how far a receiver's clock is ahead of ours, in milliseconds, if it refused a seal for that reason.

        The next seal is made for its clock. An answer without a proof is not from the receiver: believing it would
        make seals for a later time, which an attacker could intercept and use then.
        """
        apart_ms, proof = details.get("apart_ms"), details.get("apart_proof")
        if not isinstance(apart_ms, int) or not isinstance(proof, str):
            return None
        if not hmac.compare_digest(proof.encode(), self._apart_proof(sealed[:_DIGEST], apart_ms).encode()):
            return None
        if len(self._apart_ms) >= _REMEMBERED:
            self._apart_ms.clear()
        self._apart_ms[receiver] = apart_ms
        return apart_ms

    def _apart_proof(self, digest: bytes, apart_ms: int) -> str:
        """Return the proof that the receiver of the seal with this digest measured a difference of clocks."""
        text = digest + str(apart_ms).encode()
        return blake2b(text, key=self._secret, digest_size=_DIGEST, person=b"danube clock").hexdigest()

    def _note(self, nonce: str, until_ms: int, now_ms: int) -> None:
        if nonce in self._opened:
            raise _refused("it was opened already")
        if len(self._opened) >= MOST_REMEMBERED:
            self._opened = OrderedDict(each for each in self._opened.items() if each[1] >= now_ms)
        if len(self._opened) >= MOST_REMEMBERED:
            raise Overloaded("too many calls came from other brokers in a minute", retry_after_ms=1000)
        self._opened[nonce] = until_ms

    def _digest(self, body: bytes) -> bytes:
        return blake2b(body, key=self._secret, digest_size=_DIGEST, person=b"danube call").digest()


def _refused(why: str, **details: Any) -> PermissionDenied:
    return PermissionDenied(f"this call is for brokers among themselves: {why}", field="seal", **details)


def _encoded(identity: Identity) -> dict[str, Any]:
    """Encode an identity: its name and how it was authenticated, without secrets."""
    return {
        "principal": [identity.principal.name, identity.principal.type],
        "method": identity.method,
        "credential": identity.credential,
        "expires_at_s": identity.expires_at_s,
        "issued_at_s": identity.issued_at_s,
        "scopes": None if identity.scopes is None else sorted(identity.scopes),
        "everything": identity.everything,
        "actor": None if identity.actor is None else _encoded(identity.actor),
        "makers": [
            [each.principal.name, each.principal.type, None if each.scopes is None else sorted(each.scopes)]
            for each in identity.makers
        ],
    }


def _decoded(given: dict[str, Any]) -> Identity:
    name, kind = given["principal"]
    return Identity(
        principal=Principal(name, kind),
        method=given["method"],
        credential=given["credential"],
        expires_at_s=given["expires_at_s"],
        issued_at_s=given["issued_at_s"],
        scopes=None if given["scopes"] is None else frozenset(given["scopes"]),
        everything=given["everything"],
        actor=None if given["actor"] is None else _decoded(given["actor"]),
        makers=tuple(
            Maker(Principal(name, kind), None if scopes is None else frozenset(scopes))
            for name, kind, scopes in given.get("makers", ())  # a broker of an older build sends none
        ),
        proof=RELAYED_PROOF,
    )


#: the topic of a relayed call that itself names only an id, percent-encoded
TOPIC: Final = "x-danube-topic"
_SECRET_BYTES: Final = 32


async def cluster_secret(store: MetadataStore) -> bytes:
    """Return the cluster's secret, and create it if there is none. Raises `StoreUnavailable`."""

    async def decide(change: Change) -> bytes:
        found = await change.read(RELAY_SECRET)
        if found is not None:
            return found.value
        made = secrets.token_bytes(_SECRET_BYTES)
        change.put(RELAY_SECRET, made)
        return made

    return (await change(store, decide)).result


def heard_at(broker_id: str, at_ms: int) -> None:
    """Note the time of another broker, which proved its membership."""
    CLOCK.witness(f"the clock of broker {broker_id}", at_ms, kind=WitnessKind.BROKER)


class Membership:
    """Makes and checks proofs of membership. Single user: the loop."""

    def __init__(self, secret: bytes, me: str) -> None:
        self._secret = secret
        self._me = me
        self._checked: set[bytes] = set()
        self.seals = Seals(secret, me)
        self.seals.heard = heard_at

    def proof(self, receiver: str) -> bytes:
        """Return the value of the `RELAYED` header for calls to another broker."""
        return f"{self._me}.{self._digest(self._me, receiver)}".encode()

    def check(self, value: bytes) -> None:
        """Raise `PermissionDenied` unless a broker of this cluster relayed the call."""
        if value in self._checked:
            return
        sender, _, digest = value.decode("latin-1").partition(".")
        if not hmac.compare_digest(digest.encode("latin-1"), self._digest(sender, self._me).encode()):
            raise not_a_member()
        if len(self._checked) >= _REMEMBERED:
            self._checked.clear()
        self._checked.add(value)

    def _digest(self, sender: str, receiver: str) -> str:
        digest = blake2b(f"{sender}>{receiver}".encode(), key=self._secret, digest_size=32)
        return digest.hexdigest()


def not_a_member() -> ClusterError:
    return PermissionDenied(
        "the call claims to be relayed, without a proof that its sender is a broker of this cluster: leave "
        f"{RELAYED.decode()} out",
        field=RELAYED.decode(),
    )
