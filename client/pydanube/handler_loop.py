"""The handler loop: calls a function with each message of a subscription, and answers the message by its outcome.

The function's own answer stands, even if it raises afterwards. Without one, the loop acknowledges when the function
returns, and gives the message back with the reason when it raises: the subscription's failure policy, set when the loop
begins, redelivers it after a back-off, and makes a dead letter of one that failed too often. Bytes that the function
returns are the reply to a request.
With `ordered_by_key` a failed message stays here and is retried before the next of its key. If it were given back,
later messages of its key, which have already been received, would overtake it.

Each worker is a task that iterates the one consumer, so a function that never waits costs no more than in a loop
written by hand.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from functools import partial
from inspect import isasyncgen, isawaitable, iscoroutinefunction, isgenerator
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

from pydanube_core.errors import PayloadInvalid

from pydanube.blocking.loop import RunningLoop
from pydanube.blocking.messages import Acks
from pydanube.consumer import Consumer
from pydanube.handler_message import (
    BlockingHandlerMessage,
    DeadLetter,
    HandlerMessage,
    OrderedMessage,
    RetryLater,
    reason_of,
)
from pydanube.handler_options import HandlerOptions
from pydanube.handler_threads import HandlerThreads
from pydanube.message import Answer, Message
from pydanube.signals import stopped_by_signals
from pydanube.statistics import HandlerStatistics
from pydanube.tasks import TaskOwner, take_back_cancellation

if TYPE_CHECKING:
    from pydanube.producer import Producer

MessageT = TypeVar("MessageT", bound=HandlerMessage)
_ACKNOWLEDGED: Final = Answer("ack", sent=True)  # by the loop
_HELD_A_WORKER: Final = 16  # messages that wait for others of their key, and for their retry
_PATIENCE_S: Final = 60.0  # for a function with a message, if no ack timeout is given here
DEAF_S: Final = 5.0  # for functions that were cancelled, to clean up
_LOG_EVERY_S: Final = 1.0  # between logged failures of one loop, because failures repeat

Handler = Callable[..., Any]
log = logging.getLogger("pydanube")


class HandlerLoop:
    """One function and its subscription. Runs once."""

    def __init__(
        self,
        handler: Handler,
        consumer: Consumer,
        options: HandlerOptions,
        ended: Callable[[HandlerLoop, BaseException | None], None],
        publisher: Callable[[], Producer] | None = None,
    ) -> None:
        self._handler = handler
        self._consumer = consumer
        self._options, self._value_alone = options.for_handler(handler)
        self._publisher = publisher
        self._publish: Producer | None = None
        self._ended = ended
        self._handled = self._failed = self._rejected = 0
        self._running = False
        self._runner: asyncio.Task[Any] | None = None
        self._ending = False  # its workers are cancelled from here on
        self._begun = self._ended_calls = 0
        self._seen = 0, 0.0  # how many had begun, and when that was noticed
        self._logged_at = -math.inf
        self._unlogged = 0
        self._warned_of_block = False

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
        """Return the reason if every worker has held its message for longer than permitted, else None.

        Two calls are compared: reading a clock for each message would add a tenth to its cost.
        """
        if self._begun - self._ended_calls < self._options.workers:
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
            f"{waited_s:.0f} s or more: set a time limit on each wait in the function"
        )

    async def run(self, stop: asyncio.Event) -> None:
        """Handle messages until `stop` is set and every message taken is answered.

        Raises:
            ClusterError: the consumer ended for good. The messages taken have been answered, if that was possible.
        """
        tasks, self._runner = TaskOwner(), asyncio.current_task()
        threads = HandlerThreads(f"danube-{self._consumer.subscription}")
        handle = self._called(threads)
        try:
            async with AsyncExitStack() as opened:
                consumer = await opened.enter_async_context(self._consumer)
                if self._publisher is not None:
                    self._publish = await opened.enter_async_context(self._publisher())
                self._running = True
                by_key = _ByKey(self, consumer, handle) if self._options.ordered_by_key else None
                if by_key is not None:
                    work = by_key.tasks()
                elif self._options.batch_size is not None:
                    work = [self._work_batches(consumer, handle) for _ in range(self._options.workers)]
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
                        "%d of the handler of %s still run after %g s: their messages come again",
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

    async def _work(self, consumer: Consumer, handle: Callable[[Any], Awaitable[Any]]) -> None:
        # Inlined here and in `_ByKey._try`: one more call per message would add a tenth to its cost.
        async for message in consumer:
            taken = _taken(message, HandlerMessage)
            self._begun += 1
            try:
                result = await handle(taken)
                if result is not None:
                    await self.send_result(taken, result)
            except (Exception, asyncio.CancelledError) as error:
                self.note_failure(taken, error)
                await self._settle(taken, error)
            else:
                if taken._answer is None:
                    taken._answer = _ACKNOWLEDGED
                    await Message.ack(taken)
                    self._handled += 1
                else:
                    await self._settle(taken, None)
            self._ended_calls += 1

    async def _work_batches(self, consumer: Consumer, handle: Callable[[Any], Awaitable[Any]]) -> None:
        while batch := await self._gathered(consumer):
            self._begun += 1
            failure: BaseException | None = None
            try:
                result = await _result_of(await handle(batch))
                if result is not None and self._publish is not None:
                    await self._publish.send_many(_outgoing(result, None))
            except (Exception, asyncio.CancelledError) as error:
                self.note_failure(batch[0], error)
                failure = error
            for message in batch:
                await self._settle(message, failure)
            self._ended_calls += 1

    async def _gathered(self, consumer: Consumer) -> list[HandlerMessage]:
        """Return the next batch: full, or all that came within `batch_wait_s` of its first message. [] at the end."""
        size = self._options.batch_size or 1
        found: list[Message] = []
        async for message in consumer:
            found.append(message)
            break
        until_s = time.monotonic() + self._options.batch_wait_s
        while found and len(found) < size:
            more = await consumer.receive(size - len(found), max_wait_s=until_s - time.monotonic())
            if not more:
                break
            found += more
        return [_taken(message, HandlerMessage) for message in found]

    async def send_result(self, message: HandlerMessage, result: Any) -> None:
        """Send the function's result: as the reply to a request, else to the topic of `publish`. Not after a nack."""
        result = await _result_of(result)
        answer = message._answer
        if result is None or (answer is not None and answer.kind != "ack"):
            return
        if message.wants_reply:
            await message.reply(result)
        elif self._publish is not None:
            await self._publish.send_many(_outgoing(result, message.key))

    async def _settle(self, message: HandlerMessage, error: BaseException | None) -> None:
        """Send the function's own answer. Without one, acknowledge, or give the message back with its error."""
        answer = message._answer
        if answer is not None:
            await message.finish()
            self.count_answer(answer)
        elif error is None:
            message._answer = _ACKNOWLEDGED
            await Message.ack(message)
            self._handled += 1
        elif isinstance(error, (_Unfit, DeadLetter)):
            self._failed += 1
            await self.reject(message, reason_of(error))
        else:
            self._failed += 1
            await self._consumer.hold_policy((message.topic,))  # it may have joined a moment ago
            delay_ms = error.delay_ms if isinstance(error, RetryLater) else None
            await message.nack(delay_ms, reason_of(error))

    def count_answer(self, answer: Answer) -> None:
        """Count a message by the function's own answer."""
        if answer.kind == "ack":
            self._handled += 1
        else:
            self._failed += 1
            self._rejected += answer.kind == "terminate"

    def count_begun(self) -> None:
        """Count a message that a worker begins."""
        self._begun += 1

    def count_ended(self) -> None:
        """Count a message whose function has ended."""
        self._ended_calls += 1

    def note_failure(self, message: Message, error: BaseException) -> None:
        """Log a failure. Called in the `except` of its error, which is raised again if it ends the worker."""
        if isinstance(error, asyncio.CancelledError):
            if self._ending or (self._runner is not None and self._runner.cancelling()):
                raise
            take_back_cancellation()  # raised within the function, as by old libraries for timeouts
        if not isinstance(error, (RetryLater, DeadLetter)):
            self._log_failure(message, error)

    def _log_failure(self, message: Message, error: BaseException) -> None:
        now = time.monotonic()
        if now < self._logged_at + _LOG_EVERY_S:
            self._unlogged += 1
            return
        log.warning(
            "the handler of %s failed with offset %d of %s, delivery %d: %s%s",
            *(self._consumer.subscription, message.offset, message.topic, message.delivery_count),
            reason_of(error),
            f" ({self._unlogged} more failures since the last one logged)" if self._unlogged else "",
            exc_info=error,
        )
        self._logged_at, self._unlogged = now, 0

    async def reject(self, message: HandlerMessage, reason: str) -> None:
        """Give a message up for good."""
        await self._consumer.hold_policy((message.topic,))
        if self._consumer.blocks(message.topic) and not self._warned_of_block:
            self._warned_of_block = True
            log.warning(
                "%s gives up offset %d of %s, and its poison policy is block: nothing after this message is delivered until "
                "it is skipped. Set dead_letter=True. Reason: %s",
                *(self._consumer.subscription, message.offset, message.topic, reason),
            )
        self._rejected += 1
        message._answer = None  # by key: a nack that has come too often
        await message.terminate(reason)

    def count_failed(self) -> None:
        """Count a message that failed."""
        self._failed += 1

    def count_handled(self) -> None:
        """Count a message that was handled."""
        self._handled += 1

    @property
    def options(self) -> HandlerOptions:
        return self._options

    def _called(self, threads: HandlerThreads) -> Callable[[Any], Awaitable[Any]]:
        """Return the function as a worker calls it: awaited, or in a thread with blocking messages. Values are decoded."""
        handler, into, alone = self._handler, self._options.schema, self._value_alone
        is_async = iscoroutinefunction(handler) or iscoroutinefunction(getattr(handler, "__call__", None))  # noqa: B004
        batch = self._options.batch_size is not None
        if is_async and into is None:
            return handler
        acks = Acks(RunningLoop())

        def shown(message: Any) -> Any:
            if is_async:
                return message
            if batch:
                return [BlockingHandlerMessage(each, acks) for each in message]
            return BlockingHandlerMessage(message, acks)

        call = handler if is_async else partial(_in_thread, threads, handler)
        if into is None:
            return lambda message: call(shown(message))

        async def with_value(message: HandlerMessage) -> Any:
            try:
                value = await message.value(into)
            except PayloadInvalid as error:
                raise _Unfit(error.message) from error
            return await (call(value) if alone else call(value, shown(message)))

        return with_value


class _Unfit(Exception):
    """The payload does not fit the function's type, so that no retry helps."""


class _ByKey:
    """Runs work so that messages of one key follow each other.

    A key with messages is in exactly one place: ready for a worker, with a worker, or waiting for the retry of its
    first message. At most `_HELD_A_WORKER` messages per worker are here. Then no more are taken.
    """

    def __init__(
        self, loop: HandlerLoop, consumer: Consumer, handle: Callable[[Any], Awaitable[Any]]
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
        """Begin no more messages. Those that wait here are redelivered to others."""
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
        """Handle a message. Return False if it is to be tried again later."""
        if not message._from.current:  # the broker sends it again
            return True
        taken = _taken(message, OrderedMessage)
        self._loop.count_begun()
        try:
            result = await self._handle(taken)
            if result is not None:
                await self._loop.send_result(taken, result)
        except (Exception, asyncio.CancelledError) as error:
            self._loop.note_failure(taken, error)
            self._loop.count_ended()
            if taken._answer is None:
                given_up = isinstance(error, (_Unfit, DeadLetter))
                delay_ms = error.delay_ms if isinstance(error, RetryLater) else None
                return await self._failed(place, taken, delay_ms, reason_of(error), given_up=given_up)
        else:
            self._loop.count_ended()
        answer = taken._answer
        if answer is None:
            self._loop.count_handled()
            taken._answer = _ACKNOWLEDGED
            await Message.ack(taken)
            return True
        if answer.kind == "nack":
            return await self._failed(place, taken, answer.delay_ms, answer.reason)
        await taken.finish()
        self._loop.count_answer(answer)
        return True

    async def _failed(
        self,
        place: object,
        message: HandlerMessage,
        delay_ms: int | None,
        reason: str,
        *,
        given_up: bool = False,
    ) -> bool:
        self._loop.count_failed()
        options = self._loop.options
        tries = self._tries[place] = self._tries.get(place, 0) + 1
        if tries <= options.retries and not given_up:
            first, most = options.backoff_s
            delay_s = min(first * 2 ** min(tries - 1, 40), most) if delay_ms is None else delay_ms / 1000
            asyncio.get_running_loop().call_later(delay_s, self._ready.put_nowait, place)
            return False
        await self._loop.reject(message, reason)
        return True


def _taken(message: Message, kind: type[MessageT]) -> MessageT:
    """Make a message one for a function: the same object, whose answers are noted. Copying it would cost more."""
    message.__class__ = kind
    message._answer = None
    return cast(MessageT, message)


def _outgoing(result: Any, key: str | None) -> list[Message]:
    """Return the messages for a function's result: one, or a list of them. Bytes get the key."""
    entries = result if isinstance(result, (list, tuple)) else [result]
    return [each if isinstance(each, Message) else Message.new(each, key=key) for each in entries]


async def _result_of(result: Any) -> Any:
    """Return a function's result, awaited if its own `await` was forgotten. Else its message would be acknowledged unhandled.

    Raises `TypeError`: the result is a generator, whose code has not run.
    """
    if isawaitable(result):
        result = await result
    if isgenerator(result) or isasyncgen(result):
        raise TypeError(
            "the handler returned a generator, whose code has not run: use it up, or return a list"
        )
    return result


async def _in_thread(threads: HandlerThreads, handler: Handler, *arguments: object) -> Any:
    found = await threads.run(partial(handler, *arguments))
    return await found if isawaitable(found) else found


async def run_all(loops: Sequence[HandlerLoop], stop: asyncio.Event | None) -> None:
    """Run loops concurrently until they are stopped or one fails, which stops the others and raises its error."""
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
