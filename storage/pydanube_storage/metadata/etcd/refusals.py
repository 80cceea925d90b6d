"""Translate etcd's errors: try another member, authenticate again, or raise an error of ours with its remedy."""

from __future__ import annotations

import asyncio
import re
from enum import Enum
from typing import Final

from pydanube_core.errors import (
    ClusterError,
    InvalidArgument,
    MetadataUnavailable,
    PermissionDenied,
    Unauthenticated,
)

from pydanube_storage.metadata.errors import CorruptMetadata


class Seen(Enum):
    """Whether the member may have carried out the request."""

    NO = "no"
    MAYBE = "maybe"


class Refused(Exception):
    """This member did not complete the call. Another one may, or this one later."""

    def __init__(
        self, why: str, *, seen: Seen, stale_token: bool = False, no_authentication: bool = False
    ) -> None:
        super().__init__(why)
        self.why = why
        self.seen = seen
        self.stale_token = stale_token
        self.no_authentication = no_authentication


class LeaseNotFound(Exception):
    """The lease of the request does not exist in etcd."""


class AlreadyCompacted(Exception):
    """The history up to that revision was compacted before."""


class AnswerTooLarge(Exception):
    """The answer exceeds our limit in bytes. Request a shorter page."""


# Errors that etcd returns before it does anything (all errors: rpctypes/error.go)
_NOT_BEGUN: Final = ("no leader", "too many requests", "not capable", "unhealthy cluster")
_STALE_TOKEN: Final = ("invalid auth token", "revision of auth store is old")
_NO_AUTHENTICATION: Final = "authentication is not enabled"
_NOT_CONNECTED: Final = "failed to connect to all addresses"  # gRPC's text: nothing was sent
_WRONG_PASSWORD: Final = "authentication failed"
_NO_USER: Final = "user name is empty"
_NO_SPACE: Final = "database space exceeded"
_NO_LEASE: Final = "requested lease not found"
_COMPACTED: Final = "required revision has been compacted"
_TOO_LARGE: Final = "larger than max"  # gRPC's text
_CORRUPT: Final = "corrupt cluster"
_LONGEST_REASON: Final = 300
#: gRPC's texts for a failed handshake → the cause and the remedy
_HANDSHAKES: Final = (
    (("certificate has expired",), "etcd's certificate has expired: renew it"),
    (
        ("Hostname Verification",),
        "etcd's certificate is for another name: use one that it is for in `[metadata] url`",
    ),
    (
        ("CERTIFICATE_VERIFY_FAILED",),
        "etcd's certificate is not of the authority in `[metadata] ca`: name the one that made it",
    ),
    (
        ("BAD_CERTIFICATE", "CERTIFICATE_REQUIRED", "CERTIFICATE_UNKNOWN", "UNKNOWN_CA"),
        "etcd refuses this broker's certificate, or requires one: set `[metadata] cert, key`, made by an authority that etcd trusts",
    ),
    (
        ("WRONG_VERSION_NUMBER", "Handshake read failed"),
        "no TLS is spoken there: use etcd://, without `[metadata] ca, cert, key`",
    ),
)
_GRPC_HEAD: Final = re.compile(
    r"^failed to connect to all addresses; last error: (?:[A-Z_]+: )?(?:ipv[46]:\S+: )?"
)


def judge(error: BaseException) -> Exception:
    """Translate the error of a gRPC call. Any other error is returned unchanged."""
    import grpc

    if isinstance(error, asyncio.InvalidStateError):  # gRPC raises it if the stream has ended already
        return Refused("ended the stream", seen=Seen.MAYBE)
    if not isinstance(error, grpc.RpcError):
        assert isinstance(error, Exception)
        return error
    status, text = error.code(), (error.details() or "")[:_LONGEST_REASON]
    if any(each in text for each in _STALE_TOKEN):
        return Refused("wants us to authenticate again", seen=Seen.NO, stale_token=True)
    if _NO_AUTHENTICATION in text:
        return Refused(text, seen=Seen.NO, no_authentication=True)
    if _NO_LEASE in text:
        return LeaseNotFound()
    if _COMPACTED in text:
        return AlreadyCompacted()
    if _TOO_LARGE in text:
        return AnswerTooLarge()
    if (ours := _final(status, text)) is not None:
        return ours
    if any(each in text for each in (*_NOT_BEGUN, _NOT_CONNECTED)):
        return Refused(plain(text), seen=Seen.NO)
    if status is grpc.StatusCode.DEADLINE_EXCEEDED:
        return Refused("no answer in time", seen=Seen.MAYBE)
    return Refused(plain(text) or status.name, seen=Seen.MAYBE)


def _final(status: object, text: str) -> ClusterError | None:
    """Return the error that every member would give, None if only this member gives it."""
    import grpc

    if _WRONG_PASSWORD in text:
        return Unauthenticated(
            "etcd refuses the user or the password: check DANUBE_METADATA__USER and DANUBE_METADATA__PASSWORD",
            field="metadata.password",
        )
    if _NO_USER in text or status is grpc.StatusCode.UNAUTHENTICATED:
        return Unauthenticated(
            "etcd requires a user and a password: set DANUBE_METADATA__USER and DANUBE_METADATA__PASSWORD",
            field="metadata.user",
        )
    if status is grpc.StatusCode.PERMISSION_DENIED:
        return permission_denied()
    if _NO_SPACE in text:
        return MetadataUnavailable(
            "etcd's database is full and takes no writes (NOSPACE): raise --quota-backend-bytes, or compact and "
            "defragment it, then lift the alarm: etcdctl defrag && etcdctl alarm disarm",
            reason="nospace",
        )
    if _CORRUPT in text:
        return CorruptMetadata(
            "etcd's members hold different data (CORRUPT alarm): restore etcd from a snapshot and its store with it"
        )
    if status is grpc.StatusCode.UNIMPLEMENTED:
        return InvalidArgument(
            f"what answers there is not etcd 3.4 or newer ({text}): check `[metadata] url`",
            field="metadata.url",
        )
    if status is grpc.StatusCode.INVALID_ARGUMENT:
        return InvalidArgument(f"etcd refuses the request: {text}", field="metadata")
    return None


def permission_denied() -> PermissionDenied:
    """Return the error for a user of etcd without a role for our prefix."""
    return PermissionDenied(
        "etcd's user may not read and write all keys under the prefix: etcdctl role grant-permission ROLE --prefix=true "
        "readwrite PREFIX, and give the user that role",
        field="metadata.user",
    )


def plain(text: str) -> str:
    """Return the reason without the prefixes of gRPC and etcd. For a failed handshake, return its cause and remedy."""
    for marks, words in _HANDSHAKES:
        if any(mark in text for mark in marks):
            return f"the TLS handshake failed: {words}"
    return _GRPC_HEAD.sub("", text.removeprefix("etcdserver: "))
