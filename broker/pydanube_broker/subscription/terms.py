"""The terms that a consumer of any kind asks for when it attaches to a subscription."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from pydanube_core.errors import InvalidArgument

ANY_SESSION: Final = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerTerms:
    """The terms of one attachment, from the stream that opens it to the core that keeps them.

    Args:
        credit_messages, credit_bytes: first credit; bytes None: not limited.
        window_messages: for clients that grant nothing: so many messages in flight at most, credit comes back by
            itself when one leaves flight. The two credits above are then not used.
        ack_timeout_ms: None: the policy's; 0: deliveries do not expire.
        single: takes single messages (shared: strict round robin).
        key_filters: key-shared: globs with `*` and `?`; empty accepts every key.
        reports: it tells what its application takes (`taken`); what waits in its buffer is then not late.
        resumes: its session at the topic's former owner, to go on with what it holds; `ANY_SESSION`: the one that had
            its name there; 0: it holds nothing.
        max_extend_ms: while it is heard of, what it has taken is kept for so long; below the timeout: no longer.

    Raises:
        InvalidArgument: a number is negative, or the window is empty.
    """

    credit_messages: int = 0
    credit_bytes: int | None = 0
    window_messages: int | None = None
    ack_timeout_ms: int | None = None
    single: bool = False
    key_filters: tuple[str, ...] = ()
    reports: bool = False
    max_extend_ms: int = 0
    resumes: int = 0

    def __post_init__(self) -> None:
        for field in ("credit_messages", "credit_bytes", "ack_timeout_ms", "max_extend_ms"):
            value = getattr(self, field)
            if value is not None and value < 0:
                raise InvalidArgument(
                    f"{field}: {value} is negative; give 0 or more", field=field, value=value
                )
        if self.window_messages is not None and self.window_messages < 1:
            raise InvalidArgument(
                f"window_messages: {self.window_messages} is below 1",
                field="window_messages",
                value=self.window_messages,
            )
