"""The transport over our own HTTP/2: a connection to one broker, made on demand, and again after a loss."""

from __future__ import annotations

import asyncio
from typing import Final

from pydanube_core.errors import ClosedResource, DeadlineExceeded, Internal, Unavailable
from pydanube_core.grpc_wire import encode_metadata, frame, sdk_agent

from pydanube.wire.bearer import TokenSource, bearer, check_channel
from pydanube.wire.endpoint import UNIX, Tls, parse_url
from pydanube.wire.http2_call import Call
from pydanube.wire.http2_link import Link, open_link
from pydanube.wire.tls import client_context
from pydanube.wire.transport import copy_of

_SERVICE: Final = "/danube.stream.Stream/"
KEEPALIVE_S: Final = 10.0
#: time for a broker that accepts to send its settings, on a busy machine more than a second
CONNECT_S: Final = 5.0
_Headers = tuple[tuple[bytes, bytes], ...]


class Http2Transport:
    """The client's transport, as the module describes it."""

    def __init__(
        self,
        url: str,
        *,
        token: TokenSource | None = None,
        tls: Tls | None = None,
        principal: str | None = None,
        keepalive_s: float | None = None,
    ) -> None:
        self.connect_s = CONNECT_S  # how long the next connection may take
        self._keepalive_s = KEEPALIVE_S if keepalive_s is None else keepalive_s
        target, secure = parse_url(url)
        self._url = url
        if target.startswith(UNIX):
            self._host, self._port, target = target, 0, "localhost"
        else:
            host, _, port = target.rpartition(":")
            self._host, self._port = host.strip("[]"), int(port)
        self._tls = client_context(tls or Tls()) if secure or tls is not None else None
        if token is not None:
            check_channel(url, self._host, secure=self._tls is not None)
        self._token = token
        self._fixed: _Headers = (
            (b":method", b"POST"),
            (b":scheme", b"https" if self._tls is not None else b"http"),
            (b":authority", target.encode()),
            (b"te", b"trailers"),
            (b"content-type", b"application/grpc"),
            (b"user-agent", sdk_agent().encode()),
            (b"grpc-accept-encoding", b"identity,gzip"),
        )
        self._more = () if principal is None else encode_metadata((("danube-principal", principal),))
        self._connecting = asyncio.Lock()
        self._failed = Unavailable("")  # the last failure to connect
        self._failures = 0
        self._current: Link | None = None
        self._links: set[Link] = set()  # also those that end when their last stream does
        self._closed = False

    @property
    def url(self) -> str:
        return self._url

    @property
    def renews(self) -> bool:
        return callable(self._token)

    async def resolve(self, request: bytes, *, timeout_s: float) -> bytes:
        return await self.call(_SERVICE + "Resolve", request, timeout_s=timeout_s)

    async def call(self, path: str, request: bytes, *, timeout_s: float) -> bytes:
        call: Call | None = None
        try:
            async with asyncio.timeout(timeout_s):
                wait = (b"grpc-timeout", b"%dm" % max(1, min(int(timeout_s * 1000), 99_999_999)))
                call = await self.ask(path, request, wait)
                answer = await call.read()
                if answer is None or await call.read() is not None:
                    raise Internal(f"the broker at {self._url} answered {path} with no single message")
                return answer
        except TimeoutError:
            raise DeadlineExceeded(
                f"the broker at {self._url} did not answer {path} within {timeout_s:g} s", broker=self._url
            ) from None
        finally:
            if call is not None:
                call.cancel()

    async def ask(self, path: str, request: bytes, *more: tuple[bytes, bytes]) -> Call:
        """Start a call with its only message. `more` are additional headers."""
        return (await self.link()).ask((*self._headers(path), *more), frame(request))

    async def publish(self) -> Call:
        return (await self.link()).start(self._headers(_SERVICE + "Publish"))

    async def consume(self) -> Call:
        return (await self.link()).start(self._headers(_SERVICE + "Consume"))

    async def aclose(self) -> None:
        self._closed = True
        links, self._links, self._current = self._links, set(), None
        await asyncio.gather(*(link.aclose() for link in links))

    async def link(self) -> Link:
        """Return the connection, a new one if none takes calls.

        Raises:
            Unavailable: the broker cannot be reached.
            ClosedResource: the connection is another event loop's.
        """
        if self._current is not None and self._current.usable:
            if self._current.loop is not asyncio.get_running_loop():
                raise ClosedResource(
                    "the client was opened in another event loop: open it in the one that uses it (each asyncio.run() has "
                    "its own), or take pydanube.sync, for any thread"
                )
            return self._current
        failures = self._failures
        async with self._connecting:
            if self._current is not None and self._current.usable:
                return self._current
            if self._failures != failures:  # thousands of lanes do not try one after the other
                raise copy_of(self._failed)
            if self._closed:
                raise Unavailable(f"the connection to {self._url} is closed", broker=self._url)
            self._current = None
            try:
                link = await open_link(
                    self._url, self._host, self._port,
                    tls=self._tls, patience_s=self.connect_s, keepalive_s=self._keepalive_s,
                )  # fmt: skip
            except Unavailable as error:
                self._failed, self._failures = error, self._failures + 1
                raise
            if self._closed:
                link.abort("given up")
                raise Unavailable(f"the connection to {self._url} is closed", broker=self._url)
            self._links = {each for each in self._links if not each.closed.done()} | {link}
            self._current = link
            return link

    def _headers(self, path: str) -> _Headers:
        shown = () if self._token is None else encode_metadata((bearer(self._token),))
        return (*self._fixed[:2], (b":path", path.encode()), *self._fixed[2:], *self._more, *shown)
