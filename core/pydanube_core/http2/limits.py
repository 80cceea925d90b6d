"""The limits of a connection: sizes, counts and times, in one place.

The reasons for the numbers stand beside them. `docs/research/grpc-server.md` shows this table to operators.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The defaults are the broker's. Tests set smaller ones."""

    #: open streams per connection. Every consumer of an official client is a stream, all on one connection.
    max_streams: int = 10_000
    #: received frame. Larger frames save little (a frame costs about 1 µs) and are buffered until they are complete.
    max_frame_bytes: int = 64 << 10
    #: a request's headers as sent, with CONTINUATION frames, and when decoded (counted as in RFC 9113 6.5.2)
    header_block_bytes: int = 32 << 10
    header_list_bytes: int = 32 << 10
    #: CONTINUATION frames per block. No client needs one for 32 KiB with frames of 16 KiB.
    continuations: int = 8
    #: receive windows: initial size, and maximum size for a peer that fills them
    stream_window_bytes: int = 256 << 10
    stream_window_max_bytes: int = 4 << 20
    connection_window_bytes: int = 1 << 20
    connection_window_max_bytes: int = 16 << 20
    #: passed to the transport in one piece. The rest waits in its streams, which have fair turns.
    out_bytes: int = 128 << 10
    #: a stream's turn
    turn_bytes: int = 64 << 10
    #: queued for one connection by its streams before their users must wait
    buffer_bytes: int = 768 << 10
    #: queued for one connection with any windows of its streams. Beyond this no stream accepts more.
    queued_bytes: int = 8 << 20
    #: additionally queued behind used-up windows, on a connection that several clients share (`Outbox.shared`)
    stuck_bytes: int = 16 << 20
    #: whole answers that wait for the peer's window. From half of it on the peer may open no more streams.
    unsent_bytes: int = 64 << 20
    #: minimum time between acknowledgements of PING. Go's client sends a PING after every answer, unless one is pending,
    #: which takes a tenth of its and our time.
    ping_answer_s: float = 0.1

    def __post_init__(self) -> None:
        if not 1 << 14 <= self.max_frame_bytes < 1 << 24:
            raise ValueError(f"max_frame_bytes {self.max_frame_bytes}: from 16384 to 16777215 (RFC 9113 4.2)")
        if not 0 < self.stream_window_bytes <= self.stream_window_max_bytes < 1 << 31:
            raise ValueError("a stream's window begins at most at its maximum, which is below 2 GiB")
        if not (1 << 16) - 1 <= self.connection_window_bytes <= self.connection_window_max_bytes < 1 << 31:
            raise ValueError("the connection's window begins at 65535 at least and grows to 2 GiB at most")
