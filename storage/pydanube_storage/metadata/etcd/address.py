"""The address and the credentials of etcd, parsed and checked before a connection is made."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Self

from pydanube_core.errors import InvalidArgument

DEFAULT_PREFIX: Final = "/danube"
_SCHEMES: Final = {"etcd": False, "etcds": True}
_EXAMPLE: Final = "etcd://h1:2379,h2:2379/prefix"
_MAX_PREFIX_BYTES: Final = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class EtcdAddress:
    """The members of an etcd cluster, and the prefix of our keys there.

    Args:
        endpoints: `host:port` of each member. With several, one may be down.
        prefix: begins with `/` and does not end with it.
        tls: the scheme was `etcds`.
    """

    endpoints: tuple[str, ...]
    prefix: str
    tls: bool = False

    @classmethod
    def parse(cls, url: str, *, prefix: str | None = None) -> Self:
        """Parse `etcd://host:port[,host:port…][/prefix]`. `etcds://` means TLS.

        Args:
            prefix: used if the URL has none. The default is `/danube`.

        Raises:
            InvalidArgument: with `field` "metadata.url" or "metadata.prefix", the value, and the expected form.
        """
        scheme, found, rest = url.partition("://")
        if not found or scheme not in _SCHEMES:
            raise _invalid_url(url, "it begins with etcd:// or etcds://")
        hosts, _, path = rest.partition("/")
        if "@" in rest:  # also after a slash, because passwords may contain one
            raise InvalidArgument(
                "metadata.url holds a user or a password, which other users could read in the list of processes: set "
                "DANUBE_METADATA__USER and DANUBE_METADATA__PASSWORD in the environment and write the URL as "
                f"{_EXAMPLE}",
                field="metadata.url",
            )
        endpoints = tuple(_endpoint(url, each) for each in hosts.split(","))
        if len(set(endpoints)) < len(endpoints):
            raise _invalid_url(url, "it names each member once")
        return cls(endpoints=endpoints, prefix=_prefix(path or prefix), tls=_SCHEMES[scheme])

    def __str__(self) -> str:
        return f"{'etcds' if self.tls else 'etcd'}://{','.join(self.endpoints)}{self.prefix}"


@dataclass(frozen=True, slots=True, kw_only=True)
class EtcdOptions:
    """The options of a store.

    Args:
        user, password: etcd's user, None if etcd's authentication is off.
        ca: PEM file of the authorities for etcd's certificate. Turns TLS on. The default is the system's authorities.
        cert, key: PEM files of this client's certificate, if etcd requires one.
        timeout_s: the deadline of a call, over all attempts.
    """

    address: EtcdAddress
    user: str | None = None
    password: str | None = field(default=None, repr=False)
    ca: Path | None = None
    cert: Path | None = None
    key: Path | None = None
    timeout_s: float = 5.0

    def __post_init__(self) -> None:
        if (self.user is None) != (self.password is None):
            missing = "password" if self.password is None else "user"
            raise InvalidArgument(
                f"etcd wants a user and a password together: DANUBE_METADATA__{missing.upper()} is not set",
                field=f"metadata.{missing}",
            )
        if (self.cert is None) != (self.key is None):
            missing = "key" if self.key is None else "cert"
            raise InvalidArgument(
                f"metadata.cert and metadata.key belong together: metadata.{missing} is not set",
                field=f"metadata.{missing}",
            )

    @property
    def secure(self) -> bool:
        """Whether the connection is encrypted."""
        return self.address.tls or self.ca is not None or self.cert is not None


def _endpoint(url: str, text: str) -> str:
    host, colon, port = text.rpartition(":")
    if not colon or not host or not port.isascii() or not port.isdigit() or not 0 < int(port) < 65536:
        raise _invalid_url(url, f"each member is host:port, which {text!r} is not")
    if any(character.isspace() for character in host) or (":" in host and not host.startswith("[")):
        raise _invalid_url(url, f"{host!r} is no host (IPv6 addresses stand in brackets)")
    return f"{host}:{int(port)}"


def _prefix(text: str | None) -> str:
    prefix = "/" + (text or DEFAULT_PREFIX).strip("/")
    if prefix == "/" or "\0" in prefix or "//" in prefix or len(prefix.encode()) > _MAX_PREFIX_BYTES:
        raise InvalidArgument(
            f"metadata prefix {text!r}: it is one or more names with / between them, at most {_MAX_PREFIX_BYTES} "
            "bytes",
            field="metadata.prefix",
            value=text,
        )
    return prefix


def _invalid_url(url: str, rule: str) -> InvalidArgument:
    return InvalidArgument(
        f"metadata {url!r}: {rule}. An example: {_EXAMPLE}", field="metadata.url", value=url, rule=rule
    )
