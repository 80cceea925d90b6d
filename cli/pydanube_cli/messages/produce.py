"""`danube produce`: lines, a file or a text as messages, acknowledged before the command ends with 0."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

import anyio
from pydanube_core.batch.nulls import NULL
from pydanube_core.errors import ClusterError, InvalidArgument
from pydanube_core.names import TopicName
from pydanube_core.units import counted, human_bytes

from pydanube_cli.command import Common, command
from pydanube_cli.failures import EXIT_INTERRUPTED, cluster_error, report
from pydanube_cli.messages.lines import (
    LineSource,
    each,
    file_pieces,
    split_lines,
    stdin_pieces,
    whole,
)
from pydanube_cli.parameters import argument, option
from pydanube_cli.render import human_seconds, print_json, prose
from pydanube_cli.runtime import run_async, terminate_like_interrupt

if TYPE_CHECKING:
    from pydanube import Message


INTERRUPT_GRACE_S: Final = 5.0  # for the messages that were handed over when Ctrl-C came
PROGRESS_S: Final = 0.1
RATE_TICK_S: Final = 0.05


@dataclass(slots=True, kw_only=True)
class Tally:
    """Counts so far, from which the summary is made however the command ends."""

    topic: str
    sent: int = 0
    acknowledged: int = 0
    sent_bytes: int = 0
    durability: str | None = None
    ranges: list[dict[str, int | None]] = field(default_factory=list)
    started: float = field(default_factory=time.monotonic)
    interrupted: bool = False
    failed_within: tuple[int, int] | None = None  # messages of the input, counted from 1

    def failed(self, part: Sequence[bytes], done: Any) -> None:
        """Count the stored messages of a piece that failed. Only ranges identify them.

        The bytes are those of as many messages from its beginning, which is exact unless the broker refused
        one in the middle.
        """
        self.failed_within = (self.sent - len(part) + 1, self.sent)
        if done is not None:
            self.add(done)
            self.sent_bytes += sum(map(len, part[: done.count]))

    def add(self, summary: Any) -> None:
        """Add a `SendSummary`, joining adjacent ranges."""
        self.acknowledged += summary.count
        self.durability = summary.durability or self.durability
        for found in summary.ranges:
            last = next((r for r in reversed(self.ranges) if r["partition"] == found.partition), None)
            if last is not None and last["last_offset"] == found.first_offset - 1:
                last["last_offset"] = found.last_offset
            else:
                self.ranges.append(
                    {
                        "partition": found.partition,
                        "first_offset": found.first_offset,
                        "last_offset": found.last_offset,
                    }
                )

    def result(self) -> dict[str, Any]:
        """Return the result of `produce --json` (docs/interface.md#4-commands)."""
        elapsed_s = max(time.monotonic() - self.started, 1e-9)
        body: dict[str, Any] = {
            "topic": self.topic,
            "sent": self.sent,
            "acknowledged": self.acknowledged,
            "failed": self.sent - self.acknowledged,
            "bytes": self.sent_bytes,
            "ranges": self.ranges,
            "durability": self.durability,
            "elapsed_s": round(elapsed_s, 6),
            "messages_per_s": round(self.acknowledged / elapsed_s, 1),
        }
        if self.failed_within is not None:
            body["failed_within"] = dict(zip(("first", "last"), self.failed_within, strict=True))
        if self.interrupted:
            body |= {"interrupted": True, "lines_acknowledged": self.acknowledged}
        return body


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    topic: str
    source: Any  # () -> Iterator[list[bytes]]
    total_bytes: int | None
    key: str | None
    attributes: dict[str, str]
    rate: float | None
    producer: dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProduceOptions:
    """Options of `danube produce`: what to publish, and how."""

    topic: Annotated[str, argument(metavar="TOPIC", help="/namespace/topic, or a bare name in /default")]
    message: Annotated[list[str] | None, option("-m", "--message", "TEXT", "One message. May repeat.")] = None
    file: Annotated[Path | None, option("-f", "--file", "FILE", "Read a file, - is stdin.")] = None
    delimiter: Annotated[
        Literal["line", "none"],
        option("--delimiter", help="line: each line. none: the input is one message."),
    ] = "line"
    count: Annotated[int, option("--count", min=1, metavar="N", help="Repeat the texts or the file.")] = 1
    rate: Annotated[float | None, option("--rate", "N", "At most N messages a second.")] = None
    key: Annotated[str | None, option("--key", "K", "Key of every message.")] = None
    null: Annotated[
        bool, option("--null", help="With --key: one null payload, which marks the key as deleted.")
    ] = False
    attribute: Annotated[
        list[str] | None, option("-a", "--attribute", "K=V", "Attribute of every message.")
    ] = None
    partitions: Annotated[
        int | None,
        option("--partitions", min=1, metavar="N", help="If the topic is new: its partitions."),
    ] = None
    non_reliable: Annotated[
        bool,
        option("--non-reliable", help="If the topic is new: pass messages on without storing them."),
    ] = False
    compression: Annotated[Literal["none", "lz4", "zstd"], option("--compression", help="Of payloads.")] = (
        "none"
    )
    schema_subject: Annotated[str | None, option("--schema-subject", "S", "Schema of the payloads.")] = None
    producer_name: Annotated[str | None, option("--producer-name", "P", "Name of the producer.")] = None

    def __post_init__(self) -> None:
        if self.message is not None and self.file is not None:
            raise InvalidArgument("-m and -f exclude each other", field="file", value=str(self.file))
        if self.null and (self.key is None or self.message is not None or self.file is not None):
            raise InvalidArgument(
                "--null is one message without a payload: give --key, and neither -m nor -f",
                field="null",
                value=True,
            )
        if self.rate is not None and not self.rate > 0:
            raise InvalidArgument(
                f"--rate {self.rate}: at least something above 0", field="rate", value=self.rate
            )
        if self.from_stdin and self.count != 1:
            raise InvalidArgument(
                "--count repeats -m or -f, but stdin can be read once", field="count", value=self.count
            )

    @property
    def from_stdin(self) -> bool:
        """Whether stdin is read: `-f -`, or neither a text, a file nor a null."""
        return self.message is None and self.file in (None, Path("-")) and not self.null


@command(
    examples=[
        'danube produce logs -m "hello"',
        "danube produce logs -f /var/log/dpkg.log --json",
        "tail -f app.log | danube produce logs",
        "danube produce images --delimiter none -f photo.jpg --key 42 -a type=jpeg",
    ]
)
def produce(*, common: Common, options: ProduceOptions) -> int:
    """Publish messages and wait until all are acknowledged.

    Without -m or -f, stdin is read; each line is a message. A topic that does not exist is created.
    """
    job = _job(options)
    if options.from_stdin and sys.stdin.isatty():
        prose("type lines, each is a message. Ctrl-D ends")
    tally = Tally(topic=job.topic)
    failure: ClusterError | None = None
    try:
        with terminate_like_interrupt():
            run_async(partial(_produce, job, tally, common))
    except KeyboardInterrupt:
        tally.interrupted = True
    except BaseException as error:
        failure = cluster_error(error)
    if failure is not None and not tally.acknowledged:
        raise failure
    show(tally, common)
    if failure is not None:
        report(failure, as_json=common.as_json)
        return failure.exit_code
    return EXIT_INTERRUPTED if tally.interrupted else 0


def _job(options: ProduceOptions) -> Job:
    file = options.file
    return Job(
        topic=str(TopicName.parse(options.topic)),
        source=_source(options),
        total_bytes=file.stat().st_size * options.count
        if file is not None and not options.from_stdin and file.is_file()
        else None,
        key=options.key,
        attributes=_attributes(options.attribute or []) | ({NULL: "1"} if options.null else {}),
        rate=options.rate,
        producer={
            "name": options.producer_name,
            "partitions": options.partitions,
            "dispatch_strategy": "non_reliable" if options.non_reliable else None,
            "schema": options.schema_subject,
            "compression": options.compression,
        },
    )


def _source(options: ProduceOptions) -> Any:
    file, delimiter, count = options.file, options.delimiter, options.count
    if options.message is not None or options.null:
        payloads = [os.fsencode(text) for text in options.message or [""]]  # bytes that are not UTF-8 survive
        return lambda: _repeated(lambda: each(iter(payloads)), count)
    if options.from_stdin:
        return lambda: (split_lines if delimiter == "line" else whole)(stdin_pieces())
    assert file is not None, "from_stdin otherwise"
    if not file.exists() or file.is_dir():
        fault = "is a folder" if file.is_dir() else "does not exist"
        raise InvalidArgument(
            f"-f {file} {fault}. Name a file, or - for stdin", field="file", value=str(file)
        )
    if delimiter == "line":
        return lambda: _repeated(lambda: split_lines(file_pieces(file)), count)
    return lambda: _repeated(lambda: whole(file_pieces(file)), count)


def _repeated(once: Any, count: int) -> Iterator[list[bytes]]:
    for _ in range(count):
        yield from once()


def _attributes(pairs: list[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for pair in pairs:
        key, separator, value = pair.partition("=")
        if not separator or not key:
            raise InvalidArgument(f"-a {pair!r}: write key=value", field="attribute", value=pair)
        found[key] = value
    return found


async def _produce(job: Job, tally: Tally, common: Common) -> None:
    """Send until the input ends. If cancelled, finish the messages handed over within `INTERRUPT_GRACE_S`."""
    from pydanube import Retry, connect

    async with LineSource(job.source) as source, anyio.create_task_group() as tasks:
        scope = anyio.CancelScope(shield=True)
        handed_over = False

        async def send() -> None:
            nonlocal handed_over
            with scope:
                async with (
                    connect(
                        common.broker_url,
                        principal=common.principal,
                        retry=Retry(max_elapsed_s=common.timeout_s),
                    ) as client,
                    client.producer(job.topic, **job.producer) as producer,
                ):
                    tally.started = time.monotonic()
                    with _progress(job, common) as advance:
                        while (gathered := await source.take()) is not None:
                            handed_over = True
                            await send_all(producer, gathered.payloads, job, tally)
                            advance(gathered.payload_bytes, tally)
            tasks.cancel_scope.cancel()

        async def watch() -> None:
            try:
                await anyio.sleep_forever()
            finally:
                # Interrupted (or done). Before the first message is handed over, no grace is needed.
                source.stop()
                scope.deadline = anyio.current_time() + (INTERRUPT_GRACE_S if handed_over else 0)

        tasks.start_soon(send)
        tasks.start_soon(watch)


async def send_all(producer: Any, payloads: list[bytes], job: Job, tally: Tally) -> None:
    """Send one piece of the input, at the given rate."""
    step = len(payloads) if job.rate is None else max(1, int(job.rate * RATE_TICK_S))
    for start in range(0, len(payloads), step):
        part = payloads[start : start + step] if step < len(payloads) else payloads
        if job.rate is not None:
            due = tally.started + tally.sent / job.rate
            await anyio.sleep(max(0.0, due - time.monotonic()))
        tally.sent += len(part)
        try:
            plain = job.key is None and not job.attributes
            tally.add(await producer.send_many(part if plain else _dressed(part, job)))
        except ClusterError as error:
            tally.failed(part, getattr(error, "acknowledged", None))
            raise
        tally.sent_bytes += sum(map(len, part))


def _dressed(payloads: list[bytes], job: Job) -> Iterator[Message]:
    from pydanube import Message

    return (Message.new(payload, key=job.key, attributes=job.attributes or None) for payload in payloads)


class _progress:
    """Show progress on stderr, if it is a terminal."""

    def __init__(self, job: Job, common: Common) -> None:
        self._wanted = sys.stderr.isatty() and not common.as_json and job.total_bytes is not None
        self._job = job
        self._sent_bytes = 0
        self._shown = 0  # characters
        self._next_s = 0.0

    def __enter__(self) -> Callable[[int, Tally], None]:
        return self._advance if self._wanted else lambda _size, _tally: None

    def _advance(self, size: int, tally: Tally) -> None:
        self._sent_bytes += size
        if time.monotonic() < self._next_s:
            return
        self._next_s = time.monotonic() + PROGRESS_S
        of = human_bytes(self._job.total_bytes or 0)
        line = (
            f"{self._job.topic}: {human_bytes(self._sent_bytes)} of {of}, {tally.acknowledged:,} acknowledged"
        )
        sys.stderr.write("\r" + line.ljust(self._shown))
        sys.stderr.flush()
        self._shown = len(line)

    def __exit__(self, *_error: object) -> None:
        if self._shown:
            sys.stderr.write("\r" + " " * self._shown + "\r")
            sys.stderr.flush()


def show(tally: Tally, common: Common) -> None:
    result = tally.result()
    if common.as_json:
        print_json(result)
        return
    count, speed = tally.acknowledged, tally.acknowledged / max(result["elapsed_s"], 1e-9)
    line = f"{counted(count, 'message', spec=',')} acknowledged in {tally.topic}"
    if tally.durability:
        line += f" ({tally.durability})"
    if len(tally.ranges) == 1:
        only = tally.ranges[0]
        line += (
            f", offset {only['first_offset']}"
            if count == 1
            else f", offsets {only['first_offset']}-{only['last_offset']}"
        )
    line += f"; {human_bytes(tally.sent_bytes)} in {human_seconds(result['elapsed_s'])}"
    if count > 1:
        line += f", {speed:,.0f} messages/s"
    print(line)
    if tally.sent > count:
        print(f"{tally.sent - count:,} not acknowledged", file=sys.stderr)
    if tally.failed_within is not None:
        first, last = tally.failed_within
        where = f"message {first:,}" if first == last else f"messages {first:,} to {last:,}"
        print(f"it failed within {where} of the input. All before are stored", file=sys.stderr)
    if tally.interrupted:
        stored = counted(count, "message of the input is", "messages of the input are", spec=",")
        print(f"interrupted: the first {stored} stored", file=sys.stderr)
