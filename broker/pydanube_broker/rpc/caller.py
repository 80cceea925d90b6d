"""The caller of a call: the address, the certificate if there is one, and the call's metadata."""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from ipaddress import IPv6Address
from typing import Any, Final, Protocol

from pydanube_core.security.identity import Identity, current_identity

MOST_PROGRAM_CHARS: Final = 120  # of a user agent: more is not a name


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    """The other end of one connection.

    Args:
        address: as gRPC writes it: `ipv4:127.0.0.1:50123`, `ipv6:[::1]:50123`, `unix:`.
        certificate: the verified content of the client's certificate (`ssl.SSLSocket.getpeercert`), or None.
        local: the connection came over a Unix socket that only the broker's own user may open.
    """

    address: str
    certificate: Mapping[str, Any] | None = None
    local: bool = False
    #: Common to all connections of one machine: its IPv4 address, or the 64-bit network of its IPv6 address.
    host: str = field(init=False)

    def __post_init__(self) -> None:
        kind, _, rest = self.address.partition(":")
        host = rest.rpartition(":")[0]
        object.__setattr__(self, "host", _network(host) if kind == "ipv6" else f"{kind}:{host}")

    @property
    def names(self) -> tuple[str, ...]:
        """The certificate's common name and alternative names. Empty without a certificate."""
        if self.certificate is None:
            return ()
        subject = [
            value
            for part in self.certificate.get("subject", ())
            for key, value in part
            if key == "commonName"
        ]
        return (*subject, *(value for _, value in self.certificate.get("subjectAltName", ())))


def _network(host: str) -> str:
    """Return the network of an IPv6 address in brackets. An IPv4-mapped address is one machine."""
    try:
        found = IPv6Address(host.strip("[]").partition("%")[0])
    except ValueError:
        return f"ipv6:{host}"
    if found.ipv4_mapped is not None:
        return f"ipv4:{found.ipv4_mapped}"
    return f"ipv6:[{IPv6Address(int(found) >> 64 << 64)}]/64"


def address_of(name: Any) -> str:
    """Return a socket's peer name as gRPC writes it."""
    if isinstance(name, tuple) and len(name) == 2:
        return f"ipv4:{name[0]}:{name[1]}"
    if isinstance(name, tuple) and len(name) == 4:
        return f"ipv6:[{name[0]}]:{name[1]}"
    return "unix:"


def is_own_user(given: Any) -> bool:
    """Return whether the other end of a Unix socket is a process of this process's user, or of root (SO_PEERCRED)."""
    if (
        given is None
        or given.family != getattr(socket, "AF_UNIX", None)
        or not hasattr(socket, "SO_PEERCRED")
    ):
        return False
    _, user, _ = struct.unpack("3i", given.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    return user in (0, os.geteuid())


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """The address and the metadata of a caller."""

    peer: Peer
    metadata: tuple[tuple[str, str | bytes], ...] = field(default=())


class Keeper(Protocol):
    """Authenticates callers, for a broker with authorization on."""

    def identify(self, authorization: str | None, peer: Peer) -> Identity:
        """Return the caller's identity, from its `authorization` header or its connection. Raises `Unauthenticated`."""

    def opened(self, identity: Identity) -> Callable[[], None]:
        """Count a connection for an identity. Call the result when it closes. Raises `QuotaExceeded`."""

    def wait_s(self, peer: Peer) -> float:
        """Return the seconds by which a refusal to that peer is delayed."""

    def check(self, identity: Identity) -> None:
        """Check that the credential is still valid. Raises `Unauthenticated`."""


class Called(Protocol):
    """A call or stream, with its caller. The caller is computed on demand, since few calls need it."""

    @property
    def caller(self) -> Caller: ...

    @property
    def identity(self) -> Identity | None:
        """The caller's identity. None if authorization is off."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientSeen:
    """A connected client, for lists of connections. Host and program are text that the client chose or could choose."""

    host: str | None  # without the port. None: a Unix socket
    program: str | None  # its user agent
    principal: str | None  # None: authentication is off

    @classmethod
    def of(cls, called: Called) -> ClientSeen:
        caller, identity = called.caller, called.identity
        kind, _, address = caller.peer.address.partition(":")
        agent = next((value for name, value in caller.metadata if name == "user-agent"), None)
        return cls(
            host=address.rpartition(":")[0] or None if kind in ("ipv4", "ipv6") else None,
            program=agent[:MOST_PROGRAM_CHARS] if isinstance(agent, str) else None,
            principal=None if identity is None else str(identity.principal),
        )


#: Caller of the running cold handler. Hot handlers get theirs from the reply.
current_caller: ContextVar[Caller | None] = ContextVar("current_caller", default=None)


class _ColdCall:
    """The cold call under way, as `Called`. Outside of one, this process itself."""

    @property
    def caller(self) -> Caller:
        return current_caller.get() or Caller(peer=Peer(address=""))

    @property
    def identity(self) -> Identity | None:
        return current_identity.get()


COLD_CALL: Final = _ColdCall()


def call_metadata() -> tuple[tuple[str, str | bytes], ...]:
    """Return the metadata of the cold call under way. Empty outside of one."""
    caller = current_caller.get()
    return () if caller is None else caller.metadata
