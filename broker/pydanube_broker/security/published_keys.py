"""The keys that an identity provider publishes at a URL: https, no redirects, bounded in bytes, keys and time.

They are read again every `refresh_s`, and sooner if a token names a missing key, but not before `SOONEST_S` have
passed, so that made-up tokens do not cause constant requests. If a read fails, the last keys stay in effect.
"""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import logging
import socket
import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import anyio
from pydanube_core.errors import ClusterError, Unavailable

from pydanube_broker.security.jwt_keys import JwtVerifier, Key, read_published_keys

log = logging.getLogger("pydanube.security")

MOST_BYTES: Final = 256 << 10
MOST_S: Final = 10.0  # from the name's look-up to the last byte
SOONEST_S: Final = 10.0
WHERE: Final = "auth.jwks_url"


@dataclass(frozen=True, slots=True, kw_only=True)
class KeySource:
    """The source of the keys. `ca`: a file with the authority of that server. None: the system's."""

    url: str
    ca: Path | None
    refresh_s: float


class PublishedKeys:
    """See the module. `verifier` gets the keys."""

    def __init__(self, source: KeySource, verifier: JwtVerifier, changed: asyncio.Event) -> None:
        self._source = source
        self._verifier = verifier
        self._changed = changed  # set if streams may have to end
        self._failing = False

    async def run(self) -> None:
        """Read the keys periodically, until cancelled."""
        refresh_s = self._source.refresh_s
        soonest_s = min(SOONEST_S, refresh_s)
        while True:
            await asyncio.sleep(soonest_s)
            with anyio.move_on_after(0.0 if self._failing else refresh_s - soonest_s):
                await self._verifier.wanted.wait()
            await self.read()

    async def read(self) -> None:
        """Read once. A failure is logged, the first in a row only."""
        self._verifier.wanted.clear()
        try:
            keys = await self._fetched()
        except ClusterError as error:
            if not self._failing:
                log.warning("published_keys_not_read", extra={"error": str(error)})
            self._failing = True
            return
        self._failing = False
        if self._verifier.publish(keys):
            own = sorted(self._verifier.own_ids.intersection(key.kid for key in keys))
            facts = {"keys": len(keys), "hidden_by_keys_of_the_file": own}
            log.info("published_keys_read", extra={**facts})
            self._changed.set()

    async def _fetched(self) -> tuple[Key, ...]:
        request = _Request(self._source)
        try:
            with anyio.fail_after(MOST_S):
                return await anyio.to_thread.run_sync(request.keys, abandon_on_cancel=True)
        except TimeoutError:
            raise Unavailable(f"{WHERE}: no whole answer within {MOST_S:g} s") from None
        finally:
            request.abort()


class _Request:
    """One request, carried out in a thread of its own."""

    def __init__(self, source: KeySource) -> None:
        self._source = source
        self._socket: socket.socket | None = None

    def keys(self) -> tuple[Key, ...]:
        """Return the published keys. Raises `Unavailable`, or `InvalidArgument` if the answer is not a key set."""
        try:
            body = self._body()
        except ssl.SSLCertVerificationError as error:
            raise Unavailable(f"{WHERE}: its server is not trusted ({error.verify_message})") from None
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise Unavailable(f"{WHERE}: {type(error).__name__}: {str(error)[:200]}") from None
        return read_published_keys(body, where=WHERE)

    def _body(self) -> bytes:
        parts = urlsplit(self._source.url)
        context = ssl.create_default_context(cafile=self._source.ca)
        connection = http.client.HTTPSConnection(
            parts.hostname or "", parts.port, timeout=MOST_S, context=context
        )
        with contextlib.closing(connection):
            connection.connect()
            self._socket = connection.sock
            target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
            connection.request("GET", target, headers={"accept": "application/json"})
            with contextlib.closing(connection.getresponse()) as answer:
                if answer.status != http.HTTPStatus.OK:
                    moved = "; redirects are not followed" if 300 <= answer.status < 400 else ""
                    raise Unavailable(f"{WHERE}: the answer is {answer.status}{moved}")
                body = answer.read(MOST_BYTES + 1)
        if len(body) > MOST_BYTES:
            raise Unavailable(f"{WHERE}: the answer has more than {MOST_BYTES} bytes")
        return body

    def abort(self) -> None:
        """End the wait of the thread, which a server can prolong by sending a byte now and then."""
        if self._socket is not None:
            with contextlib.suppress(OSError):  # it is closed already
                socket.socket.shutdown(self._socket, socket.SHUT_RDWR)
