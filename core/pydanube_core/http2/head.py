"""The head of a request or an answer: its header list, validated by RFC 9113 section 8 once and shared by equal heads."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

Headers = tuple[tuple[bytes, bytes], ...]

#: connection-specific headers, which HTTP/2 forbids (section 8.2.2)
_OF_THE_CONNECTION: Final = frozenset(
    (b"connection", b"proxy-connection", b"keep-alive", b"transfer-encoding", b"upgrade")
)
_PSEUDO: Final = frozenset((b":method", b":scheme", b":path", b":authority"))
_TOKEN: Final = frozenset(
    b"!#$%&'*+-.^_`|~0123456789abcdefghijklmnopqrstuvwxyz"
)  # section 8.2.1: no upper case
_IN_NO_VALUE: Final = frozenset(b"\0\r\n")


class MalformedHead(Exception):
    """The request is malformed (section 8.1.1)."""


class RequestHead:
    """One header list, shared by all requests that have it.

    `note` belongs to the upper layer, which computes its value once per head.
    """

    __slots__ = ("authority", "content_length", "fields", "method", "note", "path", "scheme", "size")

    def __init__(self, headers: Iterable[tuple[bytes, bytes]]) -> None:
        """Check and parse a header list. Raises `MalformedHead` with the reason."""
        self.size = 0  # approximate memory
        pseudo: dict[bytes, bytes] = {}
        fields: list[tuple[bytes, bytes]] = []
        for name, value in headers:
            self.size += len(name) + len(value) + 150
            if name[:1] == b":":
                if fields:
                    raise MalformedHead(f"{_shown(name)} after ordinary fields")
                if name not in _PSEUDO:
                    raise MalformedHead(f"unknown pseudo-header {_shown(name)}")
                if name in pseudo:
                    raise MalformedHead(f"{_shown(name)} twice")
                _check_value(name, value)
                pseudo[name] = value
            else:
                _check_field(name, value)
                fields.append((name, value))
        missing = {b":method", b":scheme", b":path"} - pseudo.keys()
        if pseudo.get(b":method") == b"CONNECT":
            missing = {b":authority"} - pseudo.keys()
        if missing:
            raise MalformedHead(f"{_shown(min(missing))} is missing")
        if pseudo.get(b":path") == b"":
            raise MalformedHead(":path is empty")
        self.method = pseudo[b":method"]
        self.scheme = pseudo.get(b":scheme", b"")
        self.path = pseudo.get(b":path", b"")
        self.authority = pseudo.get(b":authority", b"")
        self.fields: Headers = tuple(fields)
        self.content_length = _content_length(fields)
        self.note: Any = None


class AnswerHead:
    """One header list of an answer: its head if it has a `status`, else its trailers.

    For `note` see `RequestHead`.
    """

    __slots__ = ("content_length", "fields", "note", "status")

    def __init__(self, headers: Iterable[tuple[bytes, bytes]]) -> None:
        """Check and parse a header list. Raises `MalformedHead` with the reason."""
        status: bytes | None = None
        fields: list[tuple[bytes, bytes]] = []
        for name, value in headers:
            if name[:1] != b":":
                _check_field(name, value)
                fields.append((name, value))
            elif name != b":status" or status is not None or fields:
                raise MalformedHead(f"{_shown(name)} cannot begin an answer")
            elif len(value) != 3 or not value.isdigit():
                raise MalformedHead(":status is no number of three digits")
            else:
                status = value
        self.status = status
        self.fields: Headers = tuple(fields)
        self.content_length = None if status is None else _content_length(fields)
        self.note: Any = None


def check_trailers(headers: Iterable[tuple[bytes, bytes]]) -> None:
    """Check trailers. Raises `MalformedHead` for a pseudo-header, or a field that requests must not have."""
    for name, value in headers:
        if name[:1] == b":":
            raise MalformedHead(f"{_shown(name)} in trailers")
        _check_field(name, value)


def _check_field(name: bytes, value: bytes) -> None:
    if not name or not _TOKEN.issuperset(name):
        raise MalformedHead(f"{_shown(name)} is no field name")
    if name in _OF_THE_CONNECTION or (name == b"te" and value != b"trailers"):
        raise MalformedHead(f"{_shown(name)} has no place in HTTP/2")
    _check_value(name, value)


def _check_value(name: bytes, value: bytes) -> None:
    if not _IN_NO_VALUE.isdisjoint(value) or value[:1] in (b" ", b"\t") or value[-1:] in (b" ", b"\t"):
        raise MalformedHead(f"the value of {_shown(name)} is none")


def _content_length(fields: list[tuple[bytes, bytes]]) -> int | None:
    found = {value for name, value in fields if name == b"content-length"}
    if not found:
        return None
    text = found.pop()
    if found or not text.isdigit() or len(text) > 18:
        raise MalformedHead("content-length is no number, or two")
    return int(text)


def _shown(name: bytes) -> str:
    return ascii(name[:40])[1:]
