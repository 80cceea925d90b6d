"""Find the method that a request calls. Requests with the same head share one look-up."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, Final

from pydanube_core.errors import GrpcStatus, Unauthenticated
from pydanube_core.grpc_wire import Headers, WireError, decode_metadata, timeout_s, trailers
from pydanube_core.http2.head import RequestHead
from pydanube_core.security.identity import Identity

from pydanube_broker.rpc.caller import Keeper, Peer
from pydanube_broker.rpc.calls import Call, ColdCall, HotCall, RefusedCall
from pydanube_broker.rpc.hot import CallRelay, Route
from pydanube_broker.rpc.stream_calls import ServerStreamCall, StreamCall

#: In the head of a call that another broker relays: `<broker id>.<digest>`, see `relay.membership`.
RELAYED: Final = b"x-danube-relayed"
#: Fields that may occur once. If two were allowed, one part of the broker would use the first, another the last.
ONCE: Final = (
    b"content-type", b"danube-principal", b"x-danube-topic", b"grpc-encoding", b"grpc-timeout", b"user-agent",
    b"x-danube-broker-url", b"x-danube-internal-broker", RELAYED,
)  # fmt: skip
# Answer to a client that uses HTTP/2 here without gRPC.
NO_GRPC: Final = b"This port speaks gRPC. Metrics and health pages are on the metrics port.\n"


class Method:
    """One method, and the counters for its calls when they end."""

    __slots__ = ("_calls", "_keys", "call", "elsewhere", "handler", "open", "path")

    def __init__(
        self,
        path: str,
        call: Callable[..., Call],
        handler: Any,
        calls: Counter[tuple[str, str, str]],
        *,
        open: bool = False,
        elsewhere: CallRelay | None = None,
    ) -> None:
        self.path = path
        self.open = open  # needs no authentication
        self.elsewhere = elsewhere
        self.call = call
        self.handler = handler
        self._calls = calls
        service, _, name = path.strip("/").partition("/")
        self._keys = tuple((service, name, status.name) for status in GrpcStatus)

    def ended(self, status: int) -> None:
        self._calls[self._keys[status]] += 1


def methods_of(route: Route, calls: Counter[tuple[str, str, str]]) -> Mapping[bytes, Method]:
    """Path as it travels → method."""
    kinds: tuple[tuple[Callable[..., Call], Mapping[str, Any]], ...] = (
        (StreamCall, route.streams),
        (ServerStreamCall, route.server_streams),
        (ColdCall, route.cold),
        (HotCall, route.hot),
    )
    return {
        path.encode(): Method(
            path,
            kind,
            handler,
            calls,
            open=path in route.open,
            elsewhere=route.elsewhere if path in route.carried else None,
        )
        for kind, handlers in kinds
        for path, handler in handlers.items()
    }


def nothing(calls: Counter[tuple[str, str, str]]) -> Method:
    """Handle requests for no existing method. They are counted together."""
    return Method("/unknown/unknown", RefusedCall, None, calls, open=True)


class CallHead:
    """A request's head in gRPC's terms.

    Args:
        method: the called method, or `nothing` if the request is refused.
        refusal: the response's headers then, which are the whole response if there is no `body`.
        gzip: messages may be packed.
        relayed: the head has the mark of a call that another broker relays for one of its clients.
        timeout_s: its index among the fields (`HeaderReader` takes it out of most requests).
    """

    __slots__ = (
        "_fields", "_metadata", "body", "gzip", "identity", "method", "refusal", "relayed", "timeout_s",
    )  # fmt: skip

    def __init__(self, head: RequestHead, methods: Mapping[bytes, Method], nothing: Method) -> None:
        self._fields = head.fields
        self._metadata: tuple[tuple[str, str | bytes], ...] | None = None
        # Proved by the connection and the fields. None until it is needed.
        self.identity: Identity | None = None
        self.method = nothing
        self.refusal: Headers = ()
        self.body: bytes | None = None
        self.gzip = False
        self.timeout_s: float | None = None
        fields = dict(head.fields)
        self.relayed = RELAYED in fields
        if len(fields) != len(head.fields):
            names = [name for name, _ in head.fields]
            twice = next((name for name in ONCE if names.count(name) > 1), None)
            if twice is not None:
                self._refuse(GrpcStatus.INVALID_ARGUMENT, f"{twice.decode()} stands there twice")
                return
        kind = fields.get(b"content-type", b"")
        if head.method != b"POST":
            self._refuse_http(b"405", ((b"allow", b"POST"),))
            return
        if not (kind == b"application/grpc" or kind.startswith((b"application/grpc+", b"application/grpc;"))):
            self._refuse_http(b"415")
            return
        encoding = fields.get(b"grpc-encoding", b"identity")
        self.gzip = encoding == b"gzip"
        if encoding not in (b"identity", b"gzip"):
            self._refuse(
                GrpcStatus.UNIMPLEMENTED, f"grpc-encoding {ascii(encoding)[1:]}: use identity or gzip"
            )
            return
        try:
            if (value := fields.get(b"grpc-timeout")) is not None:
                self.timeout_s = timeout_s(value)
        except WireError as error:
            self._refuse(error.status, error.why)
            return
        method = methods.get(head.path)
        if method is None:
            path = head.path[:200].decode("ascii", "replace")
            self._refuse(GrpcStatus.UNIMPLEMENTED, f"{path} is not served here")
        else:
            self.method = method

    @property
    def metadata(self) -> tuple[tuple[str, str | bytes], ...]:
        if self._metadata is None:
            self._metadata = decode_metadata(self._fields)
        return self._metadata

    def unidentified(self, keeper: Keeper, peer: Peer) -> Unauthenticated | None:
        """Authenticate the caller: fully for the first call with this head, later only whether that is still valid.

        Returns:
            None if the caller may continue, else the error for it.
        """
        try:
            if self.identity is None:
                shown = [value for name, value in self._fields if name == b"authorization"]
                if len(shown) > 1:
                    raise Unauthenticated("authorization stands there twice")
                text = shown[0].decode("latin-1") if shown else None
                self.identity = keeper.identify(text, peer)
            else:
                keeper.check(self.identity)
        except Unauthenticated as error:
            self.identity = None
            return error
        return None

    def _refuse(self, status: int, message: str) -> None:
        self.refusal = (
            (b":status", b"200"),
            (b"content-type", b"application/grpc"),
            (b"grpc-accept-encoding", b"identity,gzip"),
            *trailers(status, message),
        )

    def _refuse_http(self, status: bytes, more: Headers = ()) -> None:
        self.body = NO_GRPC
        self.refusal = ((b":status", status), (b"content-type", b"text/plain; charset=utf-8"), *more)
