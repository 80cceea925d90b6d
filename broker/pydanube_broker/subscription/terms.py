"""The terms that a consumer of any kind requests when it attaches to a subscription."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from pydanube_core.errors import InvalidArgument

ANY_SESSION: Final = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerTerms:
    """The terms of one attachment, from the stream that opens it to the core that keeps them.

    Args:
        credit_messages, credit_bytes: first credit. Bytes None: not limited.
        window_messages: maximum messages in flight, for clients that grant nothing. A message returns its
            credit when it leaves flight, and the two credits above are not used.
        ack_timeout_ms: None is the policy's. With 0 deliveries do not expire.
        single: takes single messages (shared: strict round robin).
        key_filters: key-shared: globs with `*` and `?`. Empty accepts every key.
        reports: the consumer reports the messages that its application takes (`taken`). Those in its buffer
            are not late.
        resumes: its session at the topic's former owner, to continue with the messages it holds.
            `ANY_SESSION` is the one that had its name there, and 0 means that it holds nothing.
        max_extend_ms: maximum time that taken messages are kept while the consumer reports. Below the timeout
            it has no effect.

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
                    f"{field}: {value} is negative. Give 0 or more", field=field, value=value
                )
        if self.window_messages is not None and self.window_messages < 1:
            raise InvalidArgument(
                f"window_messages: {self.window_messages} is below 1",
                field="window_messages",
                value=self.window_messages,
            )
