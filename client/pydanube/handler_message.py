"""Messages that a handler loop gives to its function: the function's first answer stands.

`ack`, `nack` and `terminate` note the answer when they are called, and send it when they are awaited. The loop sends an
answer that was noted only, because an `await` was forgotten, and adds its own only if there is none.
"""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any, Final

from pydanube_core.errors import Misuse

from pydanube.arguments import check_number, check_text, check_whole
from pydanube.blocking.messages import Message as BlockingMessage
from pydanube.blocking.wrapping import Blocking
from pydanube.message import Answer, Message

MOST_DELAY_S: Final = 2_000_000
_REASON_CHARS: Final = 500
_DONE: Final = {"ack": "acknowledged", "nack": "given back", "terminate": "given up"}


class RetryLater(Exception):
    """Raised by a handler: its message comes again after `delay_s`, or after the usual back-off, and counts as failed."""

    def __init__(self, delay_s: float | None = None, reason: str = "") -> None:
        if delay_s is not None:
            check_number("delay_s", delay_s, 0, MOST_DELAY_S)
        check_text("reason", reason)
        super().__init__(reason)
        self.delay_ms = None if delay_s is None else round(delay_s * 1000)


class DeadLetter(Exception):
    """Raised by a handler: its message is given up without a retry. The poison policy decides how."""

    def __init__(self, reason: str) -> None:
        check_text("reason", reason)
        super().__init__(reason)


def reason_of(error: BaseException) -> str:
    """Return an exception as one line, for nacks and dead letters."""
    own = isinstance(error, (RetryLater, DeadLetter)) and str(error)
    return (own or f"{type(error).__name__}: {error}")[:_REASON_CHARS].encode("utf-8", "replace").decode()


class HandlerMessage(Message):
    """A message in the hands of a handler. An answer that differs from the first is `Misuse`. The same again does nothing."""

    __slots__ = ()

    def ack(self) -> Coroutine[Any, Any, None]:
        """Acknowledge. Raises `Misuse`: it was given back or given up."""
        return self._answered(Answer("ack"))

    def nack(self, delay_ms: int | None = None, reason: str = "") -> Coroutine[Any, Any, None]:
        """Request redelivery, after `delay_ms` or the subscription's back-off. With `ordered_by_key` it stays here.

        Raises `Misuse`: it was acknowledged or given up.
        """
        if delay_ms is not None:
            check_whole("delay_ms", delay_ms, 0)
        check_text("reason", reason)
        return self._answered(Answer("nack", delay_ms, reason))

    def terminate(self, reason: str = "") -> Coroutine[Any, Any, None]:
        """Give the message up, as `Message.terminate`. Raises `Misuse`: it was acknowledged or given back."""
        check_text("reason", reason)
        return self._answered(Answer("terminate", None, reason))

    def _answered(self, answer: Answer) -> Coroutine[Any, Any, None]:
        first = self._answer
        if first is None:
            self._answer = answer
        elif first.kind != answer.kind:
            raise Misuse(
                f"the message at offset {self.offset} of {self.topic} was {_DONE[first.kind]} already, and cannot be "
                f"{_DONE[answer.kind]}: answer it once",
                first=first.kind,
                second=answer.kind,
            )
        return self.finish()

    async def finish(self) -> None:
        """Send the noted answer, unless that was done."""
        answer = self._answer
        if answer is None or answer.sent:
            return
        answer.sent = True
        try:
            await self._send(answer)
        except BaseException:
            answer.sent = False
            raise

    async def _send(self, answer: Answer) -> None:
        match answer.kind:
            case "ack":
                await Message.ack(self)
            case "nack":
                await Message.nack(self, answer.delay_ms, answer.reason)
            case "terminate":
                await Message.terminate(self, answer.reason)


class OrderedMessage(HandlerMessage):
    """A message that is tried again here: the loop keeps it after a nack, so that the next of its key waits."""

    __slots__ = ()

    async def _send(self, answer: Answer) -> None:
        if answer.kind != "nack":
            await super()._send(answer)


class BlockingHandlerMessage(BlockingMessage):
    """A `HandlerMessage` for a plain function: its methods return when the answer is on its way."""

    __slots__ = ()

    def ack(self) -> None:
        """Acknowledge. Raises `Misuse`: it was given back or given up."""
        self._loop.call(self._inner.ack())

    nack = Blocking(HandlerMessage.nack)
    terminate = Blocking(HandlerMessage.terminate)
