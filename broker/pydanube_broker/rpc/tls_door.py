"""Connections to a TLS port, from `accept` to the end of the handshake.

asyncio's server would begin every handshake as soon as its connection is there. Here a connection takes its turn when
its first byte has arrived. One handshake begins in a turn of the loop, and the next one a little later. So a storm of
handshakes leaves at least half of the processor to connected clients, and a silent peer costs only a file descriptor.
The first byte also distinguishes TLS from plain text, which gets an answer in its own protocol before it is closed.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections import Counter
from collections.abc import Callable
from typing import Final

from pydanube_broker.rpc.caller import Peer, address_of
from pydanube_broker.rpc.connection_limits import TOO_MANY_OF_ADDRESS

log = logging.getLogger("pydanube.rpc")

HANDSHAKE: Final = 0x16  # the first byte of TLS (RFC 8446 5.1)
MOST_WAITING: Final = 1024  # connections without a first byte, or with an unfinished handshake
#: Seconds between the begins of two handshakes. One takes about a millisecond of the processor.
SPACING_S: Final = 0.0025
#: Seconds after running out of descriptors, until `accept` is tried again.
PAUSE_S: Final = 0.1
LINGER_S: Final = 1.0  # for a plain-text peer to read the answer

_WORDS: Final = b"this port speaks TLS: write https:// in place of http://"
#: HTTP/2: SETTINGS, and GOAWAY with INADEQUATE_SECURITY (RFC 9113 6.8, 7)
_TO_HTTP2: Final = (
    bytes((0, 0, 0, 4, 0, 0, 0, 0, 0))
    + (8 + len(_WORDS)).to_bytes(3, "big")
    + bytes((7, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xC))
    + _WORDS
)
_TO_HTTP1: Final = (
    b"HTTP/1.1 400 Bad Request\r\ncontent-type: text/plain\r\nconnection: close\r\ncontent-length: %d\r\n\r\n%s\n"
    % (len(_WORDS) + 1, _WORDS)
)


class TlsDoor:
    """See the module.

    Args:
        listener: bound and listening. Closed with the door.
        factory: makes the protocol of a connection whose handshake is done.
        context: returns the certificates in effect.
        patience_s: for the first byte, and again for the handshake.
        closed: counts connections that got no further, by reason.
        of_address: maximum number of one address on their way through.
    """

    def __init__(
        self,
        listener: socket.socket,
        factory: Callable[[], asyncio.Protocol],
        context: Callable[[], ssl.SSLContext],
        *,
        patience_s: float,
        closed: Counter[str],
        of_address: int,
    ) -> None:
        self._listener = listener
        self._factory = factory
        self._context = context
        self._patience_s = patience_s
        self._closed = closed
        self._turn = asyncio.Lock()
        self._next_at = 0.0
        self._of_address = of_address
        self._waiting: dict[asyncio.Task[None], str] = {}  # the oldest first, with its address
        self._of: Counter[str] = Counter()
        self._loop = asyncio.get_running_loop()
        self._accepting = self._loop.create_task(self._accept())

    def close(self) -> None:
        """Accept no more connections, and close those whose handshake is not finished."""
        self._accepting.cancel()
        for task in self._waiting:
            task.cancel()
        self._listener.close()

    async def _accept(self) -> None:
        while True:
            try:
                connection, address = await self._loop.sock_accept(self._listener)
            except OSError as error:
                log.warning("not_accepted", extra={"error": str(error)})
                await asyncio.sleep(PAUSE_S)
                continue
            peer = Peer(address=address_of(address))
            if self._of[peer.host] >= self._of_address:
                self._closed[TOO_MANY_OF_ADDRESS] += 1
                connection.close()
                continue
            if len(self._waiting) >= MOST_WAITING:
                self._closed["too_many_handshakes"] += 1
                self._first_to_go().cancel()
            task = self._loop.create_task(self._admit(connection, peer.address))
            self._waiting[task] = peer.host
            self._of[peer.host] += 1
            task.add_done_callback(self._done)

    def _first_to_go(self) -> asyncio.Task[None]:
        """Return the oldest handshake of the address with the most, so that its flood does not push out others."""
        most = max(self._of, key=self._of.__getitem__)
        return next(task for task, host in self._waiting.items() if host == most)

    def _done(self, task: asyncio.Task[None]) -> None:
        host = self._waiting.pop(task)
        self._of[host] -= 1
        if not self._of[host]:
            del self._of[host]
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("handshake_failed", exc_info=error)

    async def _admit(self, connection: socket.socket, peer: str) -> None:
        handed_over = False
        try:
            connection.setblocking(False)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            async with asyncio.timeout(self._patience_s):
                first = await self._first_bytes(connection)
            if not first:
                return
            if first[0] != HANDSHAKE:
                self._note("plain_text_on_tls_port", peer)
                await self._say(connection, _TO_HTTP2 if b"PRI".startswith(first) else _TO_HTTP1)
                return
            async with self._turn:
                await asyncio.sleep(max(0.0, self._next_at - self._loop.time()))
                self._next_at = self._loop.time() + SPACING_S
            handed_over = True  # from here on the loop closes it
            await self._loop.connect_accepted_socket(
                self._factory, connection, ssl=self._context(), ssl_handshake_timeout=self._patience_s
            )
        except TimeoutError:
            self._note("slow_handshake", peer)
        except (OSError, asyncio.IncompleteReadError) as error:  # ssl.SSLError is an OSError
            self._note("tls_handshake", peer, str(getattr(error, "reason", None) or error))
        finally:
            if not handed_over:
                connection.close()

    async def _first_bytes(self, connection: socket.socket) -> bytes:
        """Peek at up to three bytes, which stay to be read. Empty if the peer has left."""
        readable = self._loop.create_future()

        def tell() -> None:
            if not readable.done():
                readable.set_result(None)

        number = connection.fileno()
        self._loop.add_reader(number, tell)
        try:
            await readable
        finally:
            self._loop.remove_reader(number)
        return connection.recv(3, socket.MSG_PEEK)

    async def _say(self, connection: socket.socket, words: bytes) -> None:
        """Send an answer, and read the peer's bytes, because closing with unread ones would reset the connection."""
        async with asyncio.timeout(LINGER_S):
            await self._loop.sock_sendall(connection, words)
            connection.shutdown(socket.SHUT_WR)
            while await self._loop.sock_recv(connection, 65_536):
                pass

    def _note(self, reason: str, peer: str, why: str = "") -> None:
        self._closed[reason] += 1
        more = {"error": why} if why else {}
        log.info("connection_closed", extra={"reason": reason, "peer": peer, **more})
