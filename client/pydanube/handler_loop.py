"""The handler loop: calls a function with each message of a subscription, and answers the message by its outcome.

What the function returns from is acknowledged, and bytes that it returns are the reply to a request. What it raises is given back with the reason: the subscription's failure
policy, set when the loop begins, lets it come again after a back-off, and makes a dead letter of what failed too often.
With `ordered_by_key` a message that failed stays here and is tried again before the next of its key, which a message
that was given back could not be: others of its key have been received already.

Each worker is a task that takes from the one consumer, so a function that never waits costs what it costs in a loop
written by hand.
"""

from __future__ import annotations

import asyncio
import logging
import math
import signal
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from inspect import isawaitable, iscoroutinefunction, signature
from typing import Any, Final

from pydanube_core.errors import InvalidArgument, PayloadInvalid

from pydanube.arguments import check_flag, check_number, check_whole
from pydanube.consumer import Consumer
from pydanube.facts import HandlerStatistics
from pydanube.failure_policy import FailurePolicy
from pydanube.handler_threads import HandlerThreads
from pydanube.message import Message
from pydanube.options import ConsumerArguments, ConsumerOptions, changed
from pydanube.tasks import TaskOwner, take_back_cancellation

MOST_WORKERS: Final = 1000
MOST_BACKOFF_S: Final = 2_000_000
_HELD_A_WORKER: Final = 16  # messages that wait for others of their key, and for their retry
_KEPT_S: Final = 3600.0  # how long those are kept, whatever the ack timeout
_REASON_CHARS: Final = 500
_PATIENCE_S: Final = 60.0  # with a function that has a message, where no ack timeout is said here
DEAF_S: Final = 5.0  # for functions that were cancelled, to clean up
_TOLD_EVERY_S: Final = 1.0  # failures in the log, of one loop: what fails once fails often

Handler = Callable[..., Any]
log = logging.getLogger("pydanube")


class HandlerArguments(ConsumerArguments, total=False):
    """The keywords of `client.run(…)` and `client.handler(…)`: those of a consumer, and the fields of `HandlerOptions`."""

    pattern: str
    workers: int
    retries: int
    backoff_s: tuple[float, float]
    dead_letter: bool | str
    ordered_by_key: bool
    schema: Callable[..., Any] | None
    drain_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class HandlerOptions:
    """How messages are handled.

    Attributes:
        workers: so many at the same time; a function without `async` runs in as many threads.
        retries: how often a message that failed comes again.
        backoff_s: before the first retry, and at most; it doubles each time.
        dead_letter: make a dead letter of what failed too often, on `<topic>-dlq-<subscription>` or the topic named here.
            False: the subscription's poison policy decides, which is to stop there unless it was set.
        ordered_by_key: messages of one key one after another, also through retries; the type is then `key-shared` unless
            given.
        schema: a class: the function gets `(value, message)`, with the payload made into it. What does not fit is not
            tried again.
        drain_s: when asked to stop, how long functions that run may take; then they are cancelled, and theirs comes again.
    """

    workers: int = 8
    retries: int = 5
    backoff_s: tuple[float, float] = (1, 60)
    dead_letter: bool | str = True
    ordered_by_key: bool = False
    schema: Callable[..., Any] | None = None
    drain_s: float = 30.0

    def __post_init__(self) -> None:
        check_whole("workers", self.workers, 1, MOST_WORKERS)
        check_whole("retries", self.retries, 0, 1_000_000)
        check_flag("ordered_by_key", self.ordered_by_key)
        check_number("drain_s", self.drain_s, 0, math.inf)
        if not isinstance(self.backoff_s, Sequence) or len(self.backoff_s) != 2:
            raise InvalidArgument(
                f"backoff_s is (first, most) in seconds, got {self.backoff_s!r:.100}",
                field="backoff_s", value=repr(self.backoff_s)[:100],
            )  # fmt: skip
        first, most = self.backoff_s
        check_number("backoff_s", first, 0, MOST_BACKOFF_S)
        check_number("backoff_s", most, 0, MOST_BACKOFF_S)
        if first > most:
            raise InvalidArgument(
                f"backoff_s is (first, most) in seconds, and the first wait of {first:g} s is longer than the longest of "
                f"{most:g} s: give ({most:g}, {first:g})",
                field="backoff_s", value=repr(self.backoff_s)[:100],
            )  # fmt: skip
        if not isinstance(self.dead_letter, str):
            check_flag("dead_letter", self.dead_letter)

    def check_handler(self, handler: object) -> None:
        """Check that a function can be called with a message, or a value and its message. Raises `InvalidArgument`."""
        wanted = ("message",) if self.schema is None else ("value", "message")
        if callable(handler):
            try:
                signature(handler).bind(*wanted)
            except TypeError:
                pass
            except ValueError:  # one of C's: nobody knows what it takes
                return
            else:
                return
        raise InvalidArgument(
            f"handler is a function of ({', '.join(wanted)}), got {handler!r:.100}",
            field="handler", value=repr(handler)[:100],
        )  # fmt: skip

    def policy(self) -> FailurePolicy:
        """Return the failure policy that these options ask of the subscription."""
        first, most = (round(seconds * 1000) for seconds in self.backoff_s)
        policy: FailurePolicy = {
            "max_redelivery_count": self.retries,
            "base_redelivery_delay_ms": first,
            "max_redelivery_delay_ms": most,
            "backoff_strategy": "exponential",
        }
        if self.dead_letter:
            policy["poison_policy"] = "dead_letter"
        if isinstance(self.dead_letter, str):
            policy["dead_letter_topic"] = self.dead_letter
        return policy

    def consumer(self, *, create: bool) -> ConsumerOptions:
        """Return the options of its consumer, unless given otherwise. `create`: its topics are known by name."""
        if self.ordered_by_key:
            return ConsumerOptions(type="key-shared", create=create, max_extend_s=_KEPT_S)
        return ConsumerOptions(type="shared", create=create)


def handler_options(changes: Mapping[str, Any]) -> tuple[HandlerOptions, dict[str, Any]]:
    """Those of a handler loop, and those of its consumer.

    Raises:
        TypeError: neither has such a keyword.
    """
    names = [*ConsumerArguments.__annotations__, "pattern"]
    of_consumer = {name: value for name, value in changes.items() if name in names}
    own = {name: value for name, value in changes.items() if name not in of_consumer}
    return changed(HandlerOptions(), own, "run", *names), of_consumer


class HandlerLoop:
    """One function and its subscription; runs once."""

    def __init__(
        self,
        handler: Handler,
        consumer: Consumer,
        options: HandlerOptions,
        ended: Callable[[HandlerLoop, BaseException | None], None],
    ) -> None:
        self._handler = handler
        self._consumer = consumer
        self._options = options
        self._ended = ended
        self._handled = self._failed = self._rejected = 0
        self._running = False
        self._runner: asyncio.Task[Any] | None = None
        self._ending = False  # its workers are cancelled from here on
        self._begun = 0
        self._seen = 0, 0.0  # how many had begun, and when that was noticed
        self._told_at = -math.inf
        self._untold = 0

    @property
    def labels(self) -> tuple[str, str, str]:
        """The labels of its counters."""
        return "handler", self._consumer.topic, self._consumer.subscription

    def statistics(self) -> HandlerStatistics:
        """Return its statistics so far."""
        return HandlerStatistics(
            handled_messages=self._handled,
            failed_messages=self._failed,
            rejected_messages=self._rejected,
            running_workers=self._options.workers if self._running else 0,
        )

    def hung(self) -> str | None:
        """Return why nothing is handled any more, if every worker has held its message for longer than it may; else None.

        Seen by looking twice: a clock for each message would cost a tenth of what a message costs.
        """
        if self._begun - self._handled - self._failed < self._options.workers:
            return None
        now = time.monotonic()
        if self._seen[0] != self._begun:
            self._seen = self._begun, now
        times = self._consumer._options
        patience_s = max(times.ack_timeout_ms, times.max_extend_ms) / 1000 or _PATIENCE_S
        waited_s = now - self._seen[1]
        if waited_s <= patience_s:
            return None
        return (
            f"all {self._options.workers} workers of the handler of {self._consumer.topic} have had their message for "
            f"{waited_s:.0f} s or more: give what the function waits for a time limit"
        )

    async def run(self, stop: asyncio.Event) -> None:
        """Handle messages until `stop` is set and every message taken is answered.

        Raises:
            ClusterError: what ended the consumer for good, after what was taken has been answered where that was possible.
        """
        tasks, self._runner = TaskOwner(), asyncio.current_task()
        threads = HandlerThreads(f"danube-{self._consumer.subscription}")
        handle = self._called(threads)
        try:
            async with self._consumer as consumer:
                self._running = True
                by_key = _ByKey(self, consumer, handle) if self._options.ordered_by_key else None
                if by_key is not None:
                    work = by_key.tasks()
                else:
                    work = [self._work(consumer, handle) for _ in range(self._options.workers)]
                workers = {tasks.start(one, name=f"handler of {consumer.topic}") for one in work}
                stopping = tasks.start(stop.wait(), name="stop of a handler loop")
                await asyncio.wait({stopping, *workers}, return_when=asyncio.FIRST_COMPLETED)
                consumer.drain()
                if by_key is not None:
                    by_key.stop()
                _, late = await asyncio.wait(workers, timeout=self._options.drain_s)
                if late:
                    log.warning(
                        "%d of the handler of %s still run after %g s: what they have comes again",
                        *(len(late), self._consumer.subscription, self._options.drain_s),
                    )
                    self._ending = True
                    await tasks.aclose(within_s=DEAF_S)
                errors = [error for each in workers - late if (error := each.exception()) is not None]
                if errors:
                    raise errors[0]
        except BaseException as error:
            self._stopped(error)
            raise
        else:
            self._stopped(None)
        finally:
            self._ending = True
            if left := await tasks.aclose(within_s=DEAF_S):
                name = self._consumer.subscription
                log.warning("%d functions of %s do not heed that they were cancelled: left alone", left, name)
            threads.close()

    def _stopped(self, error: BaseException | None) -> None:
        self._running = False
        self._ended(self, None if isinstance(error, asyncio.CancelledError) else error)

    async def _work(self, consumer: Consumer, handle: Callable[[Message], Awaitable[Any]]) -> None:
        # Written out here and in `_ByKey._try`: a call more for each message is a tenth of what it costs.
        async for message in consumer:
            self._begun += 1
            try:
                answer = await handle(message)
                if answer is not None and message.wants_reply:
                    await message.reply(answer)
            except (Exception, asyncio.CancelledError) as error:
                self.count_failed(message, error)
                await self._give_back(message, error)
            else:
                await message.ack()
                self._handled += 1

    def count_begun(self) -> None:
        """Count a message that a worker begins."""
        self._begun += 1

    def count_failed(self, message: Message, error: BaseException) -> None:
        """Count a failed message, and log it; to be called in the `except` of its error, which is raised again if it ends the worker."""
        if isinstance(error, asyncio.CancelledError):
            if self._ending or (self._runner is not None and self._runner.cancelling()):
                raise
            take_back_cancellation()  # of the function's own making, as of old libraries for timeouts
        self._failed += 1
        self._tell(message, error)

    def _tell(self, message: Message, error: BaseException) -> None:
        now = time.monotonic()
        if now < self._told_at + _TOLD_EVERY_S:
            self._untold += 1
            return
        log.warning(
            "the handler of %s failed with offset %d of %s, delivery %d: %s%s",
            *(self._consumer.subscription, message.offset, message.topic, message.delivery_count),
            reason_of(error),
            f" ({self._untold} more failures since the last one told)" if self._untold else "",
            exc_info=error,
        )
        self._told_at, self._untold = now, 0

    async def _give_back(self, message: Message, error: BaseException) -> None:
        if isinstance(error, _Unfit):
            await self.reject(message, error)
        else:
            await self._consumer.hold_policy((message.topic,))  # it may have joined a moment ago
            await message.nack(reason=reason_of(error))

    async def reject(self, message: Message, error: BaseException) -> None:
        """Give a message up for good."""
        await self._consumer.hold_policy((message.topic,))
        self._rejected += 1
        await message.terminate(reason_of(error))

    def count_handled(self) -> None:
        """Count a message that was handled."""
        self._handled += 1

    @property
    def options(self) -> HandlerOptions:
        return self._options

    def _called(self, threads: HandlerThreads) -> Callable[[Message], Awaitable[Any]]:
        """Return the function as a worker calls it: awaited, or in a thread; with the decoded value if it takes one."""
        handler, into = self._handler, self._options.schema
        if not iscoroutinefunction(handler) and not iscoroutinefunction(getattr(handler, "__call__", None)):  # noqa: B004
            handler = partial(_in_thread, threads, handler)
        if into is None:
            return handler

        async def with_value(message: Message) -> Any:
            try:
                value = await message.value(into)
            except PayloadInvalid as error:
                raise _Unfit(error.message) from error
            return await handler(value, message)

        return with_value


class _Unfit(Exception):
    """The payload does not fit the function's type, so that no retry helps."""


class _ByKey:
    """Runs work so that messages of one key follow each other.

    A key with messages is in exactly one place: ready for a worker, with a worker, or waiting for the retry of its first
    message. At most `_HELD_A_WORKER` messages a worker are here; then nothing more is taken.
    """

    def __init__(
        self, loop: HandlerLoop, consumer: Consumer, handle: Callable[[Message], Awaitable[Any]]
    ) -> None:
        self._loop = loop
        self._consumer = consumer
        self._handle = handle
        self._waiting: dict[object, deque[Message]] = {}
        self._ready: asyncio.Queue[object] = asyncio.Queue()
        self._tries: dict[object, int] = {}  # of the first message of a key
        self._room = asyncio.Semaphore(_HELD_A_WORKER * loop.options.workers)
        self._taking = True

    def tasks(self) -> list[Any]:
        """Return the coroutines to run side by side."""
        return [self._take(), *(self._work() for _ in range(self._loop.options.workers))]

    def stop(self) -> None:
        """Begin nothing more; messages that wait here are delivered again to others."""
        self._taking = False
        self._room.release()
        for _ in range(self._loop.options.workers):
            self._ready.put_nowait(None)

    async def _take(self) -> None:
        async for message in self._consumer:
            await self._room.acquire()
            if not self._taking:
                return
            key = message.key
            place = (message.topic, message.partition, message.offset if key is None else key)
            queue = self._waiting.get(place)
            if queue is None:
                self._waiting[place] = deque([message])
                self._ready.put_nowait(place)
            else:
                queue.append(message)

    async def _work(self) -> None:
        while (place := await self._ready.get()) is not None and self._taking:
            queue = self._waiting[place]
            if await self._try(place, queue[0]):
                self._tries.pop(place, None)
                queue.popleft()
                self._room.release()
                if queue:
                    self._ready.put_nowait(place)
                else:
                    del self._waiting[place]

    async def _try(self, place: object, message: Message) -> bool:
        """Handle a message; return False if it is to be tried again later."""
        if not message._from.current:  # the broker sends it again
            return True
        self._loop.count_begun()
        try:
            answer = await self._handle(message)
            if answer is not None and message.wants_reply:
                await message.reply(answer)
        except (Exception, asyncio.CancelledError) as error:
            self._loop.count_failed(message, error)
            return await self._failed(place, message, error)
        self._loop.count_handled()
        await message.ack()
        return True

    async def _failed(self, place: object, message: Message, error: BaseException) -> bool:
        options = self._loop.options
        tries = self._tries[place] = self._tries.get(place, 0) + 1
        if tries <= options.retries and not isinstance(error, _Unfit):
            first, most = options.backoff_s
            delay_s = min(first * 2 ** min(tries - 1, 40), most)
            asyncio.get_running_loop().call_later(delay_s, self._ready.put_nowait, place)
            return False
        await self._loop.reject(message, error)
        return True


def reason_of(error: BaseException) -> str:
    """Return an exception as one line, for nacks and dead letters."""
    return f"{type(error).__name__}: {error}"[:_REASON_CHARS].encode("utf-8", "replace").decode()


async def _in_thread(threads: HandlerThreads, handler: Handler, *arguments: object) -> Any:
    found = await threads.run(partial(handler, *arguments))
    return await found if isawaitable(found) else found


@contextmanager
def stopped_by_signals(stop: asyncio.Event | None) -> Iterator[asyncio.Event]:
    """Return the event that ends a loop: the given one, or one that the first SIGTERM or SIGINT sets.

    With an event of the caller's own, and outside the main thread, signals are left alone: they are somebody else's.
    """
    if stop is not None or threading.current_thread() is not threading.main_thread():
        yield stop or asyncio.Event()
        return
    event, loop = asyncio.Event(), asyncio.get_running_loop()
    with first_signal(lambda: loop.call_soon_threadsafe(event.set)):
        yield event


@contextmanager
def first_signal(told: Callable[[], object]) -> Iterator[None]:
    """Call a function at the first SIGTERM or SIGINT; a second one has its usual effect. In the main thread only."""
    before: dict[int, Any] = {}

    def restore() -> None:
        while before:
            signal.signal(*before.popitem())

    def heard(number: int, frame: object) -> None:
        restore()
        told()

    for number in (signal.SIGTERM, signal.SIGINT):
        before[number] = signal.signal(number, heard)
    try:
        yield
    finally:
        restore()


async def run_all(loops: Sequence[HandlerLoop], stop: asyncio.Event | None) -> None:
    """Run loops side by side until they are asked to stop, or one fails: then the others are stopped, and its error is raised."""
    tasks = TaskOwner()
    with stopped_by_signals(stop) as heard:
        try:
            done: set[asyncio.Task[None]] = set()
            running = {tasks.start(loop.run(heard), name="handler loop") for loop in loops}
            done, pending = await asyncio.wait(running, return_when=asyncio.FIRST_EXCEPTION)
            if pending:
                heard.set()
                done |= (await asyncio.wait(pending))[0]
            for task in done:
                task.result()
        finally:
            await tasks.aclose()
