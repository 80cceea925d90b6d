"""How brokers prove to each other that they are of one cluster: by a secret that is kept in its metadata.

A relayed call carries who sends it, and a keyed digest of sender and receiver, which only a broker that reads the
cluster's metadata can make.
"""

from __future__ import annotations

import hmac
import secrets
from hashlib import blake2b
from typing import Final

from pydanube_core.errors import ClusterError, PermissionDenied
from pydanube_storage.metadata import Absent, GuardFailed, MetadataStore, Put

from pydanube_broker.cluster.keys import RELAY_SECRET
from pydanube_broker.relay.envelope import Seals

#: `<broker id>.<digest>`
RELAYED: Final = b"x-danube-relayed"
#: the topic of a relayed call that itself names only an id, percent-encoded
TOPIC: Final = "x-danube-topic"
_SECRET_BYTES: Final = 32
_REMEMBERED: Final = 1024


async def cluster_secret(store: MetadataStore) -> bytes:
    """The cluster's secret, made by whoever asks first. Raises `StoreUnavailable`."""
    while True:
        found = await store.get(RELAY_SECRET)
        if found is not None:
            return found.value
        try:
            made = secrets.token_bytes(_SECRET_BYTES)
            await store.transact([Put(RELAY_SECRET, made)], guards=[Absent(RELAY_SECRET)])
        except GuardFailed:
            continue  # another broker was first


class Membership:
    """Makes and checks proofs of one broker. Single user: the loop."""

    def __init__(self, secret: bytes, me: str) -> None:
        self._secret = secret
        self._me = me
        self._checked: set[bytes] = set()
        self.seals = Seals(secret, me)

    def proof(self, receiver: str) -> bytes:
        """The value of `RELAYED` for calls to another broker."""
        return f"{self._me}.{self._digest(self._me, receiver)}".encode()

    def check(self, value: bytes) -> None:
        """Raise `PermissionDenied` where a call was not relayed by a broker of this cluster."""
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
        "the call says that a broker relayed it, and does not prove that the broker is of this cluster: leave "
        f"{RELAYED.decode()} out",
        field=RELAYED.decode(),
    )
