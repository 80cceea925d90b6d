"""`danube consume`: a topic on stdout, as a plain reader or with a subscription that remembers its position.

A message is acknowledged after its line has left the process, so that lines which a pipe's reader never got
are redelivered.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

import anyio
from pydanube_core.errors import (
    ClusterError,
    ConditionNotMet,
    DeadlineExceeded,
    InvalidArgument,
    TopicNotFound,
)
from pydanube_core.names import TopicName, check_subscription
from pydanube_core.positions import Position, PositionKind
from pydanube_core.units import counted, parse_duration_s

from pydanube_cli.command import Common, command
from pydanube_cli.messages.bounds import Bounds
from pydanube_cli.messages.formats import Format, Received, formatter
from pydanube_cli.messages.lines import Outlet
from pydanube_cli.parameters import argument, option
from pydanube_cli.render import prose
from pydanube_cli.runtime import run_async, terminate_like_interrupt

if TYPE_CHECKING:
    from pydanube import Batch, Client, SubscriptionType


CREDIT_MESSAGES: Final = 20_000
CREDIT_BYTES: Final = 16 << 20  # with the process' own memory, far below the limit of 300 MiB
LAST_WRITE_S: Final = 1.0  # when interrupted, for a reader of our pipe to take the current piece
QUIET_S: Final = 0.5  # after this long without a message, check whether any is left below the head


@dataclass(frozen=True, slots=True, kw_only=True)
class _Job:
    topic: str
    subscription: str | None
    type: SubscriptionType
    consumer: str | None
    start: str | None
    until: Position | None
    count: int | None
    exit: bool
    for_s: float | None
    ack: bool
    key_filters: tuple[str, ...]
    format: Format


@dataclass(frozen=True, slots=True)
class _Part:
    """The first messages of a batch, where not all are wanted."""

    payloads: Sequence[bytes]
    nulls: Sequence[bool]
    _messages: Sequence[Any]

    def messages(self) -> Sequence[Any]:
        return self._messages


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumeOptions:
    """Options of `danube consume`: what to read, from where to where, and how it is shown."""

    topic: Annotated[str, argument(metavar="TOPIC", help="/namespace/topic, or a bare name in /default")]
    subscription: Annotated[
        str | None, option("-s", "--subscription", "S", "Remember the position. Default: a plain reader.")
    ] = None
    sub_type: Annotated[
        Literal["exclusive", "shared", "failover", "key-shared"], option("--sub-type", help="With -s.")
    ] = "exclusive"
    consumer: Annotated[str | None, option("--consumer", "NAME", "With -s: our name.")] = None
    start: Annotated[
        str | None,
        option(
            "--from",
            "POS",
            "earliest, latest, offset:42, time:2026-01-31T12:00:00Z, time:-15m [default: earliest]",
        ),
    ] = None
    until: Annotated[str | None, option("--until", "POS", "End before this position.")] = None
    count: Annotated[int | None, option("--count", min=1, metavar="N", help="End after N messages.")] = None
    exit: Annotated[bool, option("--exit", help="End where the topic ended at the start.")] = False
    for_: Annotated[
        str | None, option("--for", "DURATION", "End after this time, with exit 6 if --count was not met.")
    ] = None
    ack: Annotated[Literal["auto", "none"], option("--ack", help="auto: once a line has left.")] = "auto"
    key_filter: Annotated[
        list[str] | None, option("--key-filter", "GLOB", "Keys to receive, with key-shared.")
    ] = None
    format: Annotated[
        Format | None,
        option("--format", help="text escapes bytes that are not text, raw is bytes [default: text]"),
    ] = None


@command(
    examples=[
        "danube consume logs --exit",
        "danube consume logs --from time:-15m --format json",
        "danube consume logs -s billing --count 10 --for 10s",
        "danube consume logs --exit --format raw | cmp - /var/log/dpkg.log",
    ]
)
def consume(*, common: Common, options: ConsumeOptions) -> int:
    """Read a topic to stdout, one message a line; follows it until told to end."""
    job = _job(options, as_json=common.as_json)
    with terminate_like_interrupt():
        taken = run_async(partial(_consume, job, common))
    if job.count is not None and job.for_s is not None and taken < job.count:
        raise ConditionNotMet(
            f"{taken} of {counted(job.count, 'message')} came within {job.for_s:g} s",
            received=taken,
            wanted=job.count,
        )
    return 0


def _job(options: ConsumeOptions, *, as_json: bool) -> _Job:
    subscription, until, length = options.subscription, options.until, options.for_
    if subscription is None and (
        options.consumer is not None or options.key_filter or options.sub_type != "exclusive"
    ):
        raise InvalidArgument(
            "--sub-type, --consumer and --key-filter are of a subscription: add -s NAME",
            field="subscription",
            value=None,
        )
    now_ms = time.time_ns() // 1_000_000
    if options.start is not None:
        Position.parse(options.start, now_ms=now_ms, field="from")
    return _Job(
        topic=str(TopicName.parse(options.topic)),
        subscription=None if subscription is None else check_subscription(subscription),
        type=options.sub_type,
        consumer=options.consumer,
        start=options.start,
        until=None if until is None else Position.parse(until, now_ms=now_ms, field="until"),
        count=options.count,
        exit=options.exit,
        for_s=None if length is None else parse_duration_s(length, field="for"),
        ack=options.ack == "auto",
        key_filters=tuple(options.key_filter or ()),
        format=options.format or (Format.JSON if as_json else Format.TEXT),
    )


async def _consume(job: _Job, common: Common) -> int:
    """Consume, and return how many messages were written."""
    from pydanube import Retry, connect

    sys.stdout.flush()  # from here on the descriptor is written to directly
    retry = Retry(max_elapsed_s=common.timeout_s)
    async with (
        Outlet() as outlet,
        connect(common.broker_url, principal=common.principal, retry=retry) as client,
        _receiver(job, client) as receiver,
    ):
        _say_where_it_begins(job, common, receiver)
        bounds = await _bounds(job, common, client)
        started = time.monotonic()
        with anyio.move_on_after(job.for_s):
            await _pump(job, common, client, receiver, bounds, outlet)
        if not common.as_json:
            prose(f"{counted(bounds.taken, 'message', spec=',')} in {time.monotonic() - started:.1f} s")
        return bounds.taken


class _receiver:
    """Return the reader or consumer. A missing topic is not created: the error contains the command."""

    def __init__(self, job: _Job, client: Client) -> None:
        credit = CREDIT_MESSAGES if job.count is None else min(CREDIT_MESSAGES, job.count)
        if job.subscription is None:
            self._receiver: Any = client.reader(
                job.topic,
                start=job.start or "earliest",
                stop="head" if job.exit else _stop(job.until),
                credit_messages=credit,
                credit_bytes=CREDIT_BYTES,
            )
        else:
            self._receiver = client.consumer(
                job.topic,
                job.subscription,
                type=job.type,
                name=job.consumer,
                start=job.start or "earliest",
                start_must_apply=job.start is not None,
                key_filters=job.key_filters,
                credit_messages=credit,
                credit_bytes=CREDIT_BYTES,
            )

    async def __aenter__(self) -> Any:
        try:
            return await self._receiver.__aenter__()
        except TopicNotFound as error:
            raise _explained(error) from None

    async def __aexit__(self, *error: Any) -> Any:
        return await self._receiver.__aexit__(*error)


class _Subjects:
    """Schema subjects by id, each read from the registry once, also if it is missing there."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self.known: dict[Any, str] = {}
        self._untold: set[Any] = set()

    async def learn(self, messages: Sequence[Any]) -> None:
        for ref in {message.schema for message in messages} - self.known.keys() - self._untold - {None}:
            try:
                self.known[ref] = (await self._client.schemas.get(ref)).subject
            except ClusterError:
                self._untold.add(ref)


def _say_where_it_begins(job: _Job, common: Common, receiver: Any) -> None:
    """Print where reading begins, if the requested offset lies before the beginning of the topic."""
    if job.start is None or not job.start.startswith("offset:"):
        return
    asked = int(job.start.removeprefix("offset:"))
    for (topic, partition), begins in receiver.starts.items():
        if begins <= asked:
            continue
        where = topic if partition is None else f"{topic} partition {partition}"
        if common.as_json:
            clamped = {"topic": topic, "partition": partition, "asked": asked, "begins": begins}
            print(json.dumps({"clamped": clamped}), file=sys.stderr)
        else:
            said = f"danube: {where} begins at offset {begins}: earlier messages, from {asked} on, are not stored here"
            print(said, file=sys.stderr)


def _stop(until: Position | None) -> str | None:
    if until is None:
        return None
    return "head" if until.kind is PositionKind.LATEST else str(until)


def _explained(error: TopicNotFound) -> TopicNotFound:
    if not error.next:
        topic = str(error.details.get("topic") or "TOPIC")
        error.suggest(
            "topics.create",
            tool="create_topic",
            command=f"danube topics create {topic}",
            arguments={"topic": topic},
            why="consume does not create topics, produce does",
        )
    return error


async def _heads(topic: str, client: Client, *, timeout_s: float) -> dict[int | None, int]:
    """Return where the topic ends now: one past the last message of each partition (None: not partitioned).

    A plain reader that starts at `latest` is opened and left: it begins there, and leaves nothing behind.
    """
    try:
        with anyio.fail_after(timeout_s):
            async with client.reader(topic, start="latest", credit_messages=1) as reader:
                return {partition: begins for (_, partition), begins in reader.starts.items()}
    except TimeoutError:
        raise DeadlineExceeded(
            f"the broker did not answer within {timeout_s:g} s where {topic} ends",
            topic=topic,
            timeout_s=timeout_s,
        ) from None


async def _bounds(job: _Job, common: Common, client: Client) -> Bounds:
    """Return the limits that end this consumption on our side. A plain reader's one stop is the broker's to keep."""
    by_broker = job.subscription is None and not (job.exit and job.until)
    if by_broker or not (job.exit or job.until):
        return Bounds(partitions=(0,), count=job.count)  # never ends by partition
    heads = await _heads(job.topic, client, timeout_s=common.timeout_s)
    ends = dict(heads) if job.exit else {}
    end_time_ms: int | None = None
    if job.until is not None:
        match job.until.kind:
            case PositionKind.EARLIEST:
                ends = dict.fromkeys(heads, 0)
            case PositionKind.LATEST:
                ends = dict(heads)
            case PositionKind.OFFSET:
                ends = {p: min(job.until.value, ends.get(p, job.until.value)) for p in heads}
            case PositionKind.TIME:
                end_time_ms = job.until.value
    return Bounds(partitions=tuple(heads), ends=ends, end_time_ms=end_time_ms, count=job.count)


async def _pump(
    job: _Job, common: Common, client: Client, receiver: Any, bounds: Bounds, outlet: Outlet
) -> None:
    """Write and acknowledge until the bounds are reached or the receiver ends."""
    subjects = _Subjects(client)
    render = formatter(job.format, subjects.known)
    acknowledge = job.ack and job.subscription is not None
    # With a subscription, the last messages below the head may already be acknowledged, or be with another
    # consumer: they never come, and only the broker can report it. A plain reader is ended by the broker.
    ask_when_quiet = job.exit and job.subscription is not None
    quiet_since: float | None = None
    left_out = 0
    batches = receiver.batches()
    while not bounds.reached:
        batch: Batch | None = None
        with anyio.move_on_after(QUIET_S if ask_when_quiet else None) as waiting:
            batch = await anext(batches, None)
        if waiting.cancelled_caught:
            batches = receiver.batches()  # the cancellation ended the iterator. The receiver has lost nothing
            quiet_since = quiet_since or time.monotonic()
            if await _nothing_left(job, common, bounds, quiet_s=time.monotonic() - quiet_since):
                break
            continue
        if batch is None:
            break  # the reader is at its stop
        quiet_since = None
        if job.format is Format.JSON:
            await subjects.learn(batch.messages())
        wanted = bounds.take(batch.partition, batch.offsets, int(batch.append_time.timestamp() * 1000))
        if job.format is Format.RAW:
            left_out += sum(batch.nulls[:wanted])
        if wanted == len(batch):
            await _hand_out(outlet, render(batch), [batch] if acknowledge else [])
        elif wanted:
            messages = batch.messages()[:wanted]
            part: Received = _Part(batch.payloads[:wanted], batch.nulls[:wanted], messages)
            await _hand_out(outlet, render(part), messages if acknowledge else [])
    await batches.aclose()
    if left_out:
        print(f"{left_out} null payloads were left out. --format json shows them", file=sys.stderr)


async def _hand_out(outlet: Outlet, data: bytes, acknowledged: Sequence[Any]) -> None:
    """Write, then acknowledge. If cancelled in between, still acknowledge messages that the reader took."""
    written = outlet.begin(data)
    try:
        await asyncio.shield(written)
    except asyncio.CancelledError:
        with anyio.move_on_after(LAST_WRITE_S, shield=True):
            await asyncio.wait([written])
        if written.done() and written.exception() is None:
            for each in acknowledged:
                await each.ack()
        written.cancel()
        raise
    for each in acknowledged:
        await each.ack()


async def _nothing_left(job: _Job, common: Common, bounds: Bounds, *, quiet_s: float) -> bool:
    """Return whether everything below the bounds has been delivered to some consumer, or acknowledged before."""
    from pydanube_admin.remote import OpsClient

    arguments = {"topic": job.topic, "subscription": job.subscription, "limit": 1000}
    try:
        async with OpsClient(
            common.admin_url, timeout_s=common.timeout_s, principal=common.principal, face="cli"
        ) as ops:
            items = (await ops.call("subscriptions.lag", arguments))["items"]
    except ClusterError:
        # Without the admin port, silence is the only evidence.
        return quiet_s >= common.timeout_s
    for item in items:
        end = bounds.ends.get(item["partition"])
        if end is None or item["partition"] in bounds.ended:
            continue
        undelivered = item["lag_messages"] - item["in_flight"]
        if undelivered > max(0, item["next_offset"] - end):
            return False
    return bool(items)
