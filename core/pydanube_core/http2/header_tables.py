"""Encode and decode header blocks with `hpack` and a cache: a repeated block costs one look-up in a dict.

The meaning of a block depends on the decoder's dynamic table. So a cached block is valid while the table does not change,
and only if reading it changed nothing. The table counts its changes, which makes the cache independent of how a peer uses
the table. Some clients add a new value to the table with every request (Go's `grpc-timeout`), so the server announces a
table of size 0 and blocks are self-contained. That one header still differs from call to call, so blocks are split at it,
because the parts before and after it repeat.

Sending works in the same way: answers have few different header lists, each encoded once and then copied.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any, Final

from hpack import Decoder, Encoder, HPACKError, OversizedHeaderListError
from hpack.hpack import decode_integer
from hpack.huffman import HuffmanEncoder
from hpack.huffman_constants import REQUEST_CODES, REQUEST_CODES_LENGTH
from hpack.huffman_table import decode_huffman
from hpack.table import HeaderTable

from pydanube_core.http2.codes import ConnectionFailure, ErrorCode
from pydanube_core.http2.head import Headers

_REMEMBERED: Final = 64  # cached blocks per connection. Official clients have about ten kinds of calls
_REMEMBERED_BYTES: Final = 64 << 10  # cached blocks with their header lists. At most a quarter for one block
_LARGEST_TABLE: Final = 4096  # maximum of our encoder's table, also if a peer offers more
_HUFFMAN: Final = HuffmanEncoder(REQUEST_CODES, REQUEST_CODES_LENGTH)


class _CountingTable(HeaderTable):
    """A table that counts its changes."""

    def __init__(self) -> None:
        super().__init__()
        self.changes = 0

    def add(self, name: bytes, value: bytes) -> None:
        # grpc's C core also sends "add this to the table" for a table without room, which changes nothing.
        if self._maxsize or self.dynamic_entries:
            self.changes += 1
        super().add(name, value)

    @property
    def maxsize(self) -> int:
        return self._maxsize

    @maxsize.setter
    def maxsize(self, newmax: int) -> None:
        if newmax != self._maxsize:
            self.changes += 1
        HeaderTable.maxsize.fset(self, newmax)  # type: ignore[attr-defined]


class HeaderReader:
    """Decodes the header blocks of one peer.

    Args:
        table_bytes: the announced table size, in force from `acked` on.
        varying: the name of the header that is new with every request, or b"".
    """

    def __init__(self, *, table_bytes: int, list_bytes: int, varying: bytes = b"") -> None:
        self._decoder = Decoder(max_header_list_size=list_bytes)
        self._table = _CountingTable()
        self._decoder.header_table = self._table
        self._table_bytes = table_bytes
        self._limit = self._decoder.max_allowed_table_size
        self._list_bytes = list_bytes
        self._known: dict[bytes, Any] = {}
        self.remembered_bytes = 0
        self._known_at = 0  # the table's count of changes when they were cached
        # The encodings of the header's name without the table: by Huffman's code or plain, each marked as "not indexed",
        # "never indexed" or (grpc's C core) "to be added to the table", which has no room for it.
        packed = _HUFFMAN.encode(varying)
        written = (bytes((0x80 | len(packed),)) + packed, bytes((len(varying),)) + varying)
        marks = (b"\x00", b"\x10", b"\x40")
        self._names = tuple(mark + name for name in written for mark in marks) if varying else ()
        self._name = 0  # the one that this peer uses
        # The last split block: the bytes before the value, the bytes after it, and the result of both.
        self._last: tuple[bytes, bytes, Any] | None = None

    def acked(self) -> None:
        """Apply the announced table size, because the peer has acknowledged our SETTINGS.

        From here on it may not set its table to more than announced. If it does not reduce the table either, as it must
        (RFC 7541 4.2), the table stays as it is and its blocks are still decoded correctly.
        """
        self._limit = self._table_bytes

    def read(self, block: bytes, make: Callable[[Headers], Any]) -> tuple[Any, bytes | None]:
        """Return the result of `make` for the header list, and the value of the varying header if that was split off.

        Errors of `make` are not cached.

        Raises `ConnectionFailure` if the block is invalid or too large when decoded. The table is unusable then.
        """
        table = self._table
        if self._known_at != table.changes:
            self._forget()
            self._known_at = table.changes
            self._last = None
        elif self._last is not None and (value := self._as_last(block)) is not None:
            return self._last[2], value
        found = self._known.get(block)
        if found is not None:
            return found, None
        if self._names and not table._maxsize and not self._limit:
            # Nothing is indexed, now and later, so the pieces of a block can be decoded separately.
            split = self._split(block)
            if split is not None:
                before, value, behind = split
                key = before + behind
                found = self._known.get(key)
                if found is not None:
                    self._last = (before + self._names[self._name], behind, found)
                    return found, value
                # If a piece cannot be decoded, the name was found inside another header.
                before_list, behind_list = self._try(before), self._try(behind)
                if before_list is not None and behind_list is not None:
                    if _list_bytes(before_list + behind_list) > self._list_bytes:
                        raise ConnectionFailure(ErrorCode.ENHANCE_YOUR_CALM, "header list too large")
                    made = make(before_list + behind_list)
                    self._remember(key, before_list + behind_list, made)
                    return made, value
        headers = self._decode(block)
        made = make(headers)
        if self._known_at == table.changes:
            self._remember(block, headers, made)
        else:
            self._forget()
            self._known_at = table.changes
        return made, None

    def read_once(self, block: bytes) -> Headers:
        """Return the header list of a block that will not repeat. Raises `ConnectionFailure` like `read`."""
        return self._decode(block)

    def _remember(self, key: bytes, headers: Headers, made: Any) -> None:
        size = len(key) + _list_bytes(headers)
        if size * 4 > _REMEMBERED_BYTES:
            return
        if len(self._known) >= _REMEMBERED or self.remembered_bytes + size > _REMEMBERED_BYTES:
            self._forget()
        self._known[key] = made
        self.remembered_bytes += size

    def _forget(self) -> None:
        self._known.clear()
        self.remembered_bytes = 0

    def _as_last(self, block: bytes) -> bytes | None:
        """Return the varying header's value if a block differs from the last split one only in it."""
        assert self._last is not None
        before, behind, _ = self._last
        start = len(before)
        if not block.startswith(before) or start >= len(block):
            return None
        size = block[start] & 0x7F
        end = start + 1 + size
        if size == 0x7F or end > len(block) or block[end:] != behind:
            return None
        return _text(block[start:end])

    def _split(self, block: bytes) -> tuple[bytes, bytes, bytes] | None:
        """Split a block: before the varying header, its value, and after it."""
        at = block.find(self._names[self._name])
        if at < 0:
            for number, name in enumerate(self._names):
                at = block.find(name)
                if at >= 0:
                    self._name = number
                    break
            else:
                return None
        start = at + len(self._names[self._name])
        if start >= len(block):
            return None
        size = block[start] & 0x7F
        end = start + 1 + size
        if size == 0x7F or end > len(block):
            return None
        value = _text(block[start:end])
        return None if value is None else (block[:at], value, block[end:])

    def _try(self, piece: bytes) -> Headers | None:
        """Decode a piece of a block. Return None if it is invalid or changes the table."""
        before = self._table.changes
        try:
            found = tuple(
                (bytes(name), bytes(value)) for name, value in self._decoder.decode(piece, raw=True)
            )
        except (HPACKError, IndexError):
            found = None
        return found if self._table.changes == before else None

    def _decode(self, block: bytes) -> Headers:
        try:
            at = 0
            # Updates of the table's size come first
            while at < len(block) and block[at] & 0xE0 == 0x20:
                size, length = decode_integer(block[at:], 5)
                if size > self._limit:
                    raise HPACKError(f"a table of {size} bytes, {self._limit} are allowed")
                at += length
            return tuple((bytes(name), bytes(value)) for name, value in self._decoder.decode(block, raw=True))
        except OversizedHeaderListError as error:
            raise ConnectionFailure(ErrorCode.ENHANCE_YOUR_CALM, "header list too large") from error
        except (HPACKError, IndexError) as error:
            raise ConnectionFailure(ErrorCode.COMPRESSION_ERROR, f"header block: {error}") from error


class HeaderWriter:
    """Encodes header blocks for one peer, in the order in which they are sent."""

    def __init__(self) -> None:
        self._encoder = Encoder()
        self._table = _CountingTable()
        self._encoder.header_table = self._table
        self._known: dict[Headers, bytes] = {}
        self._known_at = 0
        # The smallest and the last size that the peer set since the last block
        self._sizes: tuple[int, int] | None = None
        self._pair: tuple[Headers, Headers, tuple[bytes, bytes]] | None = None
        self._pair_at = -1

    def table_size(self, size: int) -> None:
        """Apply the peer's SETTINGS_HEADER_TABLE_SIZE. The next block acknowledges it (RFC 7541 4.2)."""
        size = min(size, _LARGEST_TABLE)
        self._sizes = (min(size, size if self._sizes is None else self._sizes[0]), size)

    def _resize(self) -> None:
        least, last = self._sizes or (0, 0)
        self._sizes = None
        if least < self._table.maxsize:
            self._encoder.header_table_size = least
        if last != self._table.maxsize:
            self._encoder.header_table_size = last

    def write(self, headers: Headers) -> bytes:
        """Encode a header list that repeats, and cache it. It may be added to the table."""
        if self._sizes is not None:
            self._resize()
        table = self._table
        if self._known_at != table.changes:
            self._known.clear()
            self._known_at = table.changes
        block = self._known.get(headers)
        if block is None:
            block = self._encoder.encode(headers)
            if self._known_at == table.changes:
                if len(self._known) >= _REMEMBERED:
                    self._known.clear()
                self._known[headers] = block
        return block

    def write_pair(self, headers: Headers, trailers: Headers) -> tuple[bytes, bytes]:
        """Encode both blocks of a response. A repeated pair returns the same object as before."""
        pair = self._pair
        if (
            pair is not None
            and pair[0] is headers
            and pair[1] is trailers
            and self._pair_at == self._table.changes
            and self._sizes is None
        ):
            return pair[2]
        blocks = self.write(headers), self.write(trailers)
        if headers in self._known and trailers in self._known:
            self._pair, self._pair_at = (headers, trailers, blocks), self._table.changes
        return blocks

    def write_once(self, headers: Headers) -> bytes:
        """Encode a list that does not repeat (an error's text) without changing the table."""
        if self._sizes is not None:
            self._resize()
        return self._encoder.encode([(name, value, True) for name, value in headers])


@lru_cache(maxsize=2048)
def _text(written: bytes) -> bytes | None:
    """Decode a string with its length byte, plain or by Huffman's code. None if it is invalid.

    Cached, because Go encodes its time-outs by Huffman's code, which takes 3 µs to decode, and most of them are within
    some hundred microseconds of one value.
    """
    if not written[0] & 0x80:
        return written[1:]
    try:
        return bytes(decode_huffman(written[1:]))
    except HPACKError:
        return None


def _list_bytes(headers: Headers) -> int:
    return sum(len(name) + len(value) + 32 for name, value in headers)
