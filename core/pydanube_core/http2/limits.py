"""The limits of a connection: sizes, counts and times, in one place.

The reasons for the numbers stand beside them. `docs/research/grpc-server.md` shows this table to operators.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Defaults are the broker's; tests set smaller ones."""

    #: open streams of a connection. Every consumer of an official client is one, all on one connection.
    max_streams: int = 10_000
    #: what we take in one frame. Larger saves little (a frame costs about a microsecond) and is held until it is whole.
    max_frame_bytes: int = 64 << 10
    #: a request's headers as they travel, CONTINUATION frames included, and when unpacked (RFC 9113 6.5.2 counting)
    header_block_bytes: int = 32 << 10
    header_list_bytes: int = 32 << 10
    #: CONTINUATION frames of one block; no client needs one for 32 KiB in frames of 16
    continuations: int = 8
    #: receive windows: what they begin with, and how far they grow for a peer that fills them
    stream_window_bytes: int = 256 << 10
    stream_window_max_bytes: int = 4 << 20
    connection_window_bytes: int = 1 << 20
    connection_window_max_bytes: int = 16 << 20
    #: what is handed to the transport at once; the rest waits in its stream, where the turns are fair
    out_bytes: int = 128 << 10
    #: a stream's turn
    turn_bytes: int = 64 << 10
    #: queued towards one connection by its streams before they are told to wait
    buffer_bytes: int = 768 << 10
    #: queued towards one connection, whatever its streams' windows: from here on no stream is handed more
    queued_bytes: int = 8 << 20
    #: on a connection that several clients share (`Outbox.shared`), queued beside that behind windows that are used up
    stuck_bytes: int = 16 << 20
    #: of whole answers that wait for a peer's window: from half of it on it may open no more streams
    unsent_bytes: int = 64 << 20
    #: an acknowledgement of PING follows the last one no sooner: Go's client asks after every answer it gets, unless it
    #: still waits, and that is a tenth of its and our time
    ping_answer_s: float = 0.1

    def __post_init__(self) -> None:
        if not 1 << 14 <= self.max_frame_bytes < 1 << 24:
            raise ValueError(f"max_frame_bytes {self.max_frame_bytes}: from 16384 to 16777215 (RFC 9113 4.2)")
        if not 0 < self.stream_window_bytes <= self.stream_window_max_bytes < 1 << 31:
            raise ValueError("a stream's window begins at most at its maximum, which is below 2 GiB")
        if not (1 << 16) - 1 <= self.connection_window_bytes <= self.connection_window_max_bytes < 1 << 31:
            raise ValueError("the connection's window begins at 65535 at least and grows to 2 GiB at most")
