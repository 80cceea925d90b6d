"""A lane's credit: the amount that the broker may still send, and the amount taken since the last grant."""

from __future__ import annotations


class CreditAccount:
    """Credit in messages and in stored bytes, counted separately. Pure bookkeeping.

    Args:
        messages: the lane's share of its consumer's credit.
        size_bytes: its share in bytes.
    """

    __slots__ = (
        "_share_bytes", "_share_messages", "_taken_bytes", "_taken_messages", "bytes", "held", "messages",
    )  # fmt: skip

    def __init__(self, messages: int, size_bytes: int) -> None:
        self._share_messages = messages
        self._share_bytes = size_bytes
        self.messages = 0  # the broker's remaining credit
        self.bytes = 0
        self._taken_messages = 0  # not granted again yet. Negative while credit beyond a reduced share is out
        self._taken_bytes = 0
        self.held = False  # nothing is granted: the consumer is paused

    def delivered(self, messages: int, size_bytes: int) -> None:
        self.messages -= messages
        self.bytes -= size_bytes

    def taken(self, messages: int, size_bytes: int) -> None:
        self._taken_messages += messages
        self._taken_bytes += size_bytes

    def resize(self, messages: int, size_bytes: int) -> None:
        """Set another share. Credit out beyond a smaller share is not renewed."""
        self.taken(messages - self._share_messages, size_bytes - self._share_bytes)
        self._share_messages, self._share_bytes = messages, size_bytes

    @property
    def due(self) -> bool:
        """Return whether to grant now: half of the share was taken."""
        if self.held:
            return False
        return 2 * self._taken_messages >= self._share_messages or 2 * self._taken_bytes >= self._share_bytes

    def grant(self) -> tuple[int, int]:
        """Return messages and bytes to grant now, and count them as granted."""
        messages, size_bytes = max(0, self._taken_messages), max(0, self._taken_bytes)
        self.taken(-messages, -size_bytes)
        self.delivered(-messages, -size_bytes)
        return messages, size_bytes

    def open(self, *, keeps: bool) -> tuple[int, int]:
        """Return the credit for a new stream: the whole share or, with `keeps`, less the kept buffer."""
        kept_messages = kept_bytes = 0
        if keeps:
            kept_messages = self._share_messages - self.messages - self._taken_messages
            kept_bytes = self._share_bytes - self.bytes - self._taken_bytes
        self.messages = max(0, self._share_messages - kept_messages)
        self.bytes = max(0, self._share_bytes - kept_bytes)
        self._taken_messages = self._taken_bytes = 0
        return self.messages, self.bytes
