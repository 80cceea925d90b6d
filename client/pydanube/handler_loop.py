"""The handler loop: messages of a subscription go to a function, and what becomes of it becomes their answer.

What the function returns from is acknowledged, and bytes that it returns are the reply to a request. What it raises is given back with the reason: the subscription's failure
policy, set when the loop begins, lets it come again after a back-off, and makes a dead letter of what failed too often.
With `ordered_by_key` a message that failed stays here and is tried again before the next of its key, which a message
that was given back could not be: others of its key have been received already.

Each worker is a task that takes from the one consumer, so a function that never waits costs what it costs in a loop
written by hand.
"""

from __future__ import annotations

import asyncio
import math
import signal
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import copy_context
from dataclasses import dataclass
from functools import partial
from inspect import isawaitable, iscoroutinefunction
from typing import TYPE_CHECKING, Any, Final

from pydanube_core.errors import InvalidArgument, PayloadInvalid

from pydanube.arguments import check_flag, check_number, check_whole
from pydanube.consumer import Consumer
from pydanube.facts import HandlerStatistics
from pydanube.message import Message
from pydanube.options import ConsumerArguments, ConsumerOptions
from pydanube.tasks import TaskOwner

if TYPE_CHECKING:
    from pydanube.admin.generated.operations import Admin

MOST_WORKERS: Final = 1000
_HELD_A_WORKER: Final = 16  # messages that wait for others of their key, and for their retry
_KEPT_S: Final = 3600.0  # how long those are kept, whatever the ack timeout
_REASON_CHARS: Final = 500

Handler = Callable[..., Any]


class HandlerArguments(ConsumerArguments, total=False):
    """The keywords of `client.run(…)` and `client.handler(…)`: those of a consumer, and the fields of `HandlerOptions`."""

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
        check_number("backoff_s", self.backoff_s[1], 0, 2_000_000)
        check_number("backoff_s", self.backoff_s[0], 0, self.backoff_s[1])
        if not isinstance(self.dead_letter, str):
            check_flag("dead_letter", self.dead_letter)

    def policy(self) -> dict[str, Any]:
        """The subscription's failure policy, as `subscriptions.set_failure_policy` takes it."""
        first, most = (round(seconds * 1000) for seconds in self.backoff_s)
        policy: dict[str, Any] = {
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

    def consumer(self) -> ConsumerOptions:
        """How its consumer takes part, where nothing else is said."""
        if self.ordered_by_key:
            return ConsumerOptions(type="key-shared", create=True, max_extend_s=_KEPT_S)
        return ConsumerOptions(type="shared", create=True)


class HandlerLoop:
    """One function and its subscription; runs once."""

    def __init__(
        self,
        handler: Handler,
        consumer: Consumer,
        options: HandlerOptions,
        admin: Callable[[], Admin],
        ended: Callable[[HandlerLoop, BaseException | None], None],
    ) -> None:
        self._handler = handler
        self._consumer = consumer
        self._options = options
        self._admin = admin
        self._ended = ended
        self._handled = self._failed = self._rejected = 0
        self._running = False
        self._with_policy: set[str] = set()

    @property
    def labels(self) -> tuple[str, str, str]:
        """By which its counters are known."""
        return "handler", self._consumer.topic, self._consumer.subscription

    def statistics(self) -> HandlerStatistics:
        """Return its statistics so far."""
        return HandlerStatistics(
            handled_messages=self._handled,
            failed_messages=self._failed,
            rejected_messages=self._rejected,
            running_workers=self._options.workers if self._running else 0,
        )

    async def run(self, stop: asyncio.Event) -> None:
        """Handle messages until `stop` is set, and what was taken then is answered.

        Raises:
            ClusterError: what ended the consumer for good, after what was taken has been answered where that was possible.
        """
        tasks = TaskOwner()
        pool = ThreadPoolExecutor(
            self._options.workers, thread_name_prefix=f"danube-{self._consumer.subscription}"
        )
        handle = self._called(pool)
        try:
            async with self._consumer as consumer:
                await self._set_policy(consumer.topics)
                self._running = True
                by_key = _ByKey(self, consumer, handle) if self._options.ordered_by_key else None
                if by_key is not None:
                    work = by_key.tasks()
                else:
                    work = [self._work(consumer, handle) for _ in range(self._options.workers)]
                workers = {tasks.start(one, name=f"handler of {consumer.topic}") for one in work}
                stopping = tasks.start(_set(stop), name="stop of a handler loop")
                await asyncio.wait({stopping, *workers}, return_when=asyncio.FIRST_COMPLETED)
                consumer.drain()
                if by_key is not None:
                    by_key.stop()
                _, late = await asyncio.wait(workers, timeout=self._options.drain_s)
                for worker in late:
                    await tasks.end(worker)
                errors = [error for each in workers - late if (error := each.exception()) is not None]
                if errors:
                    raise errors[0]
        except BaseException as error:
            self._stopped(error)
            raise
        else:
            self._stopped(None)
        finally:
            await tasks.aclose()
            pool.shutdown(wait=False, cancel_futures=True)

    def _stopped(self, error: BaseException | None) -> None:
        self._running = False
        self._ended(self, None if isinstance(error, asyncio.CancelledError) else error)

    async def _work(self, consumer: Consumer, handle: Callable[[Message], Awaitable[Any]]) -> None:
        async for message in consumer:
            try:
                answer = await handle(message)
                if answer is not None and message.wants_reply:
                    await message.reply(answer)
            except Exception as error:
                await self._give_back(message, error)
            else:
                await message.ack()
                self._handled += 1

    async def _give_back(self, message: Message, error: Exception) -> None:
        self._failed += 1
        if message.topic not in self._with_policy:  # it has joined since
            await self._set_policy((message.topic,))
        if isinstance(error, _Unfit):
            await self.reject(message, error)
        else:
            await message.nack(reason=reason_of(error))

    async def reject(self, message: Message, error: Exception) -> None:
        """Give a message up for good."""
        self._rejected += 1
        await message.terminate(reason_of(error))

    def count(self, *, failed: bool) -> None:
        """One more try has ended."""
        if failed:
            self._failed += 1
        else:
            self._handled += 1

    @property
    def options(self) -> HandlerOptions:
        return self._options

    def _called(self, pool: ThreadPoolExecutor) -> Callable[[Message], Awaitable[Any]]:
        """The function as a worker calls it: awaited, in a thread if it does not await, with the value if one is wanted."""
        handler, into = self._handler, self._options.schema
        if not iscoroutinefunction(handler) and not iscoroutinefunction(getattr(handler, "__call__", None)):  # noqa: B004
            handler = partial(_in_thread, pool, handler)
        if into is None:
            return handler

        async def with_value(message: Message) -> Any:
            try:
                value = await message.value(into)
            except PayloadInvalid as error:
                raise _Unfit(error.message) from error
            return await handler(value, message)

        return with_value

    async def _set_policy(self, topics: Sequence[str]) -> None:
        """Let the broker know what becomes of failures; nothing is written where it knows."""
        wanted, subscriptions = self._options.policy(), self._admin().subscriptions
        for topic in topics:
            holds = await subscriptions.get_failure_policy(topic, self._consumer.subscription)
            if any(getattr(holds, name) != value for name, value in wanted.items()):
                await subscriptions.set_failure_policy(topic, self._consumer.subscription, **wanted)
            self._with_policy.add(topic)


class _Unfit(Exception):
    """The payload is none of what the function takes: no retry makes it one."""


class _ByKey:
    """Work where the messages of a key go one after another.

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
        """The work, to be run side by side."""
        return [self._take(), *(self._work() for _ in range(self._loop.options.workers))]

    def stop(self) -> None:
        """Begin nothing more; what waits here comes again elsewhere."""
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
        """Handle a message; False: it is tried again later."""
        options = self._loop.options
        if not message._from.current:  # the broker sends it again
            return True
        try:
            answer = await self._handle(message)
            if answer is not None and message.wants_reply:
                await message.reply(answer)
        except Exception as error:
            self._loop.count(failed=True)
            tries = self._tries[place] = self._tries.get(place, 0) + 1
            if tries <= options.retries and not isinstance(error, _Unfit):
                first, most = options.backoff_s
                delay_s = min(first * 2 ** min(tries - 1, 40), most)
                asyncio.get_running_loop().call_later(delay_s, self._ready.put_nowait, place)
                return False
            await self._loop.reject(message, error)
        else:
            self._loop.count(failed=False)
            await message.ack()
        return True


def reason_of(error: BaseException) -> str:
    """An exception in one line, as nacks and dead letters carry it."""
    return f"{type(error).__name__}: {error}"[:_REASON_CHARS].encode("utf-8", "replace").decode()


async def _in_thread(pool: ThreadPoolExecutor, handler: Handler, *arguments: object) -> Any:
    found = await asyncio.get_running_loop().run_in_executor(pool, copy_context().run, handler, *arguments)
    return await found if isawaitable(found) else found


async def _set(stop: asyncio.Event) -> None:
    await stop.wait()


@contextmanager
def stopped_by_signals(stop: asyncio.Event | None) -> Iterator[asyncio.Event]:
    """The event that ends a loop: the one given, or one that SIGTERM and SIGINT set, the first time they come.

    With an event of the caller's own, and outside the main thread, signals are left alone: they are somebody else's.
    """
    if stop is not None or threading.current_thread() is not threading.main_thread():
        yield stop or asyncio.Event()
        return
    event, loop = asyncio.Event(), asyncio.get_running_loop()
    before: dict[int, Any] = {}

    def restore() -> None:
        while before:
            signal.signal(*before.popitem())

    def heard(number: int, frame: object) -> None:
        restore()  # a second one does what it would have done
        loop.call_soon_threadsafe(event.set)

    for number in (signal.SIGTERM, signal.SIGINT):
        before[number] = signal.signal(number, heard)
    try:
        yield event
    finally:
        restore()


async def run_all(loops: Sequence[HandlerLoop], stop: asyncio.Event | None) -> None:
    """Run them side by side until they are asked to stop, or one fails: then the others are asked, and its error is raised."""
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
