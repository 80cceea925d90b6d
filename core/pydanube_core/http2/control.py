"""Frames of the connection itself: SETTINGS, PING, GOAWAY, and those that are ignored (RFC 9113 section 6)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from pydanube_core.http2 import frames
from pydanube_core.http2.budgets import BudgetKind, Budgets
from pydanube_core.http2.codes import ConnectionFailure, ErrorCode, FrameType, SettingId, StreamFailure
from pydanube_core.http2.header_tables import HeaderReader
from pydanube_core.http2.limits import Limits
from pydanube_core.http2.sending import INITIAL_WINDOW_BYTES, WINDOW_LIMIT, Outbox
from pydanube_core.http2.streams import Stream

LARGEST_ID: Final = (1 << 31) - 1
#: bytes of a SETTINGS frame that count as one more frame. Clients send fewer than ten entries of 6 bytes
_CHARGED_BYTES: Final = 600
#: streams visited for a SETTINGS frame that count as one more frame, half a millisecond
_CHARGED_STREAMS: Final = 2000
_OUR_PING: Final = b"pydanube"
_GOING_PING: Final = b"goingoff"


class Control:
    """The settings of both sides, and pending acknowledgements. Sends our `greeting` first, which ends with SETTINGS."""

    def __init__(
        self,
        limits: Limits,
        out: Outbox,
        streams: Mapping[int, Stream],
        reader: HeaderReader,
        budgets: Budgets,
        now: float,
        *,
        greeting: bytes,
    ) -> None:
        self._limits = limits
        self._out = out
        self._streams = streams
        self._reader = reader
        self._budgets = budgets
        self.announced = False  # the end was announced
        self.peer_streams = LARGEST_ID  # maximum of open streams that we began
        self._acks_due = 1  # pending acknowledgements of our SETTINGS
        self.pings: list[bytes] = []  # to be acknowledged
        self._ping_answered_at = now - 1.0
        self._out.control(greeting)
        if (more := limits.connection_window_bytes - INITIAL_WINDOW_BYTES) > 0:
            self._out.control(frames.window_update(0, more))

    def frame(self, kind: int, flags: int, stream_id: int, payload: bytes, now: float) -> None:
        """Handle a frame that is neither of a stream nor the acknowledgement of a PING.

        Raises `ConnectionFailure`, `StreamFailure` for an error of the peer.
        """
        match kind:
            case FrameType.SETTINGS:
                self.settings(flags, stream_id, payload, now)
            case FrameType.PING:
                self._ping(stream_id, payload, now)
            case FrameType.PRIORITY:
                self._budgets.spend(BudgetKind.PRIORITIES, now)
                _check_priority(stream_id, payload)
            case FrameType.GOAWAY:
                self._budgets.spend(BudgetKind.UNKNOWN, now)
                if stream_id:
                    raise ConnectionFailure(ErrorCode.PROTOCOL_ERROR, "connection_frame_on_stream")
                if len(payload) < 8:
                    raise ConnectionFailure(ErrorCode.FRAME_SIZE_ERROR, "bad_frame_size")
            case FrameType.WINDOW_UPDATE:
                raise ConnectionFailure(ErrorCode.FRAME_SIZE_ERROR, "bad_frame_size")
            case FrameType.PUSH_PROMISE | FrameType.CONTINUATION:
                raise ConnectionFailure(ErrorCode.PROTOCOL_ERROR, "unexpected_frame")
            case _:
                self._budgets.spend(BudgetKind.UNKNOWN, now)  # ignored (section 5.5)

    def settings(self, flags: int, stream_id: int, payload: bytes, now: float) -> None:
        """Apply the peer's settings. Each value is checked, but the streams' windows change once per frame."""
        self._budgets.spend(BudgetKind.SETTINGS, now, 1 + len(payload) // _CHARGED_BYTES)
        if stream_id:
            raise ConnectionFailure(ErrorCode.PROTOCOL_ERROR, "connection_frame_on_stream")
        if flags & frames.ACK:
            if payload:
                raise ConnectionFailure(ErrorCode.FRAME_SIZE_ERROR, "bad_frame_size")
            if self._acks_due:
                self._acks_due -= 1
                self._reader.acked()
            return
        if len(payload) % 6:
            raise ConnectionFailure(ErrorCode.FRAME_SIZE_ERROR, "bad_frame_size")
        windows: list[int] = []
        for key, value in frames.SETTING.iter_unpack(payload):
            match key:
                case SettingId.HEADER_TABLE_SIZE:
                    self._out.writer.table_size(value)
                case SettingId.ENABLE_PUSH:
                    if value > 1:
                        raise ConnectionFailure(ErrorCode.PROTOCOL_ERROR, "bad_setting")
                case SettingId.INITIAL_WINDOW_SIZE:
                    if value > WINDOW_LIMIT:
                        raise ConnectionFailure(ErrorCode.FLOW_CONTROL_ERROR, "bad_setting")
                    windows.append(value)
                case SettingId.MAX_FRAME_SIZE:
                    if not 1 << 14 <= value < 1 << 24:
                        raise ConnectionFailure(ErrorCode.PROTOCOL_ERROR, "bad_setting")
                    self._out.max_frame_bytes = min(value, self._limits.turn_bytes)
                case SettingId.MAX_CONCURRENT_STREAMS:
                    self.peer_streams = value
                case _:
                    pass  # unknown, or MAX_HEADER_LIST_SIZE, which our lists never reach
        if windows:
            self._set_windows(largest=max(windows), last=windows[-1], now=now)
        self._out.control(frames.SETTINGS_ACK)

    def _set_windows(self, *, largest: int, last: int, now: float) -> None:
        """Apply the last INITIAL_WINDOW_SIZE of a frame. The largest one must not overflow any stream's window."""
        out, looked_at = self._out, 0
        if largest + out.most_credit > WINDOW_LIMIT:  # the stream with the most credit may have ended
            looked_at = len(self._streams)
            out.most_credit = max((stream.credit for stream in self._streams.values()), default=0)
            if largest + out.most_credit > WINDOW_LIMIT:
                raise ConnectionFailure(ErrorCode.FLOW_CONTROL_ERROR, "window_too_large")
        grows = last > out.initial_window
        out.initial_window = last
        if grows:
            looked_at += len(out.stuck)
            for stream in tuple(out.stuck):
                out.opened(stream)
        self._budgets.spend(BudgetKind.SETTINGS, now, looked_at // _CHARGED_STREAMS)

    def acked(self, stream_id: int, payload: bytes) -> bool:
        """Handle the acknowledgement of our PING. Return whether it is the one of `announce_end`."""
        if stream_id:
            raise ConnectionFailure(ErrorCode.PROTOCOL_ERROR, "connection_frame_on_stream")
        if len(payload) != 8:
            raise ConnectionFailure(ErrorCode.FRAME_SIZE_ERROR, "bad_frame_size")
        return payload == _GOING_PING

    def _ping(self, stream_id: int, payload: bytes, now: float) -> None:
        self.acked(stream_id, payload)
        self._budgets.spend(BudgetKind.PINGS, now)
        self.pings.append(payload)
        self.answer_pings(now)

    def answer_pings(self, now: float) -> float:
        """Acknowledge PINGs that are due. Return the seconds until the next ones are due, 0 if there are none."""
        if not self.pings:
            return 0.0
        wait = self._ping_answered_at + self._limits.ping_answer_s - now
        if wait > 0:
            return wait
        for payload in self.pings:
            self._out.control(frames.ping(payload, ack=True))
        self.pings.clear()
        self._ping_answered_at = now
        return 0.0

    def probe(self) -> None:
        """Send a PING to check whether the peer answers."""
        self._out.control(frames.ping(_OUR_PING, ack=False))

    def announce_end(self) -> None:
        """Send a GOAWAY that still accepts everything, and a PING whose answer shows that the peer has read it."""
        self._out.control(frames.goaway(LARGEST_ID, ErrorCode.NO_ERROR, "shutting down"))
        self._out.control(frames.ping(_GOING_PING, ack=False))
        self.announced = True


def _check_priority(stream_id: int, payload: bytes) -> None:
    if not stream_id:
        raise ConnectionFailure(ErrorCode.PROTOCOL_ERROR, "frame_on_stream_0")
    if len(payload) != 5:
        raise StreamFailure(stream_id, ErrorCode.FRAME_SIZE_ERROR, "PRIORITY has 5 bytes")
    if int.from_bytes(payload[:4], "big") & LARGEST_ID == stream_id:
        raise StreamFailure(stream_id, ErrorCode.PROTOCOL_ERROR, "depends on itself")
