"""Run, check and preview connectors of files in this process, as `danube connect run` does."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Final

import anyio
from pydanube import Client, TopicNotFound
from pydanube_core.errors import ClusterError, InvalidArgument, Unavailable
from pydanube_core.units import counted

from pydanube_connect.connector import Sink, Source
from pydanube_connect.file import Declared, read_file
from pydanube_connect.log_lines import logs_as
from pydanube_connect.records import Batch, Record
from pydanube_connect.retrying import alone, reason_of
from pydanube_connect.shaping import shaper
from pydanube_connect.sinking import SinkRunner, rehearse
from pydanube_connect.sinking import dry_run as sink_dry_run
from pydanube_connect.sourcing import SourceRunner

Runner = SinkRunner | SourceRunner
_CHECK_S: Final = 30.0


def read_files(paths: Sequence[str]) -> list[Declared]:
    """Read and check all files before any of them runs.

    Raises:
        ClusterError: for the first file with a mistake.
    """
    found = [read_file(path) for path in paths]
    by_name: dict[str, str] = {}
    for each in found:
        if each.name in by_name:
            raise InvalidArgument(
                f"{each.path} and {by_name[each.name]} both declare {each.name}. Give each connector its own name.",
                file=each.path,
                field="name",
                value=each.name,
            )
        by_name[each.name] = each.path
    return found


def runner_of(declared: Declared, client: Client, *, stop: anyio.Event, once: bool = False) -> Runner:
    """Return the runner of a connector. Raises `InvalidArgument` if its settings contradict each other."""
    make = SinkRunner if declared.is_sink else SourceRunner
    return make(declared, client, stop=stop, once=once)


async def run_all(runners: Sequence[Runner]) -> list[tuple[Runner, ClusterError]]:
    """Run connectors concurrently. If one fails, the others continue.

    Returns:
        The failed runners with their errors. The errors contain no resolved secret.
    """
    failed: list[tuple[Runner, ClusterError]] = []

    async def run(runner: Runner) -> None:
        try:
            with logs_as(runner.declared):
                await runner.run()
        except Exception as error:
            found = clean_error(error, runner.declared)
            runner.statistics.last_error = found.message
            failed.append((runner, found))

    async with anyio.create_task_group() as tasks:
        for runner in runners:
            tasks.start_soon(run, runner)
    return failed


def clean_error(error: BaseException, declared: Declared) -> ClusterError:
    """Return an error that can be shown, without secrets and without its cause."""
    error = alone(error)
    if not isinstance(error, ClusterError):
        error = Unavailable(f"{declared.path}: {declared.name} failed: {reason_of(error)}")
    found = ClusterError.from_dict(error.to_dict())
    found.message = declared.references.clean(found.message)
    found.details = {
        name: declared.references.clean(value) if isinstance(value, str) else value
        for name, value in found.details.items()
    }
    return found


async def check(declared: Declared, client: Client) -> list[str]:
    """Connect to both ends of a connector without moving records. Return the findings.

    Raises:
        ClusterError: the connector could not run. The error contains no secret.
    """
    connector = declared.make()
    shaper(declared.shape, path=declared.path)
    found: list[str] = []
    try:
        with anyio.fail_after(_CHECK_S):
            for topic in declared.topics:
                try:
                    described = await client.admin.topics.describe(topic)
                    messages = described.messages
                    held = described.because if messages is None else counted(messages, "message")
                    found.append(f"topic {topic} exists, {held}")
                except TopicNotFound:
                    if declared.is_sink:
                        raise TopicNotFound(
                            f"{declared.path}: topic {topic} does not exist, and a sink makes none. Create it: danube "
                            f"topics create {topic}",
                            topic=topic,
                        ) from None
                    found.append(f"topic {topic} does not exist: it is made when the source runs")
            try:
                found += await connector.check()
                if isinstance(connector, Sink):
                    found += await rehearse(declared, connector, client)
            finally:
                await connector.close()
    except Exception as error:
        raise clean_error(error, declared) from None
    return [declared.references.clean(text) for text in found]


async def dry_run(declared: Declared, client: Client, count: int) -> AsyncIterator[str]:
    """Yield the first records as they would be written. Neither end is changed.

    Raises:
        ClusterError: an end cannot be reached. The error contains no secret.
    """
    try:
        if declared.is_sink:
            async for text in sink_dry_run(declared, client, count):
                yield text
            return
        source: Source[object] = declared.make()  # type: ignore[type-var]  # settings of its own model
        shape = shaper(declared.shape, path=declared.path)
        try:
            async for batch in source.sample(count):
                records: list[Record] = list(batch.records)[:count]
                count -= len(records)
                if shape is not None:
                    records, _ = shape(records)
                for text in source.preview(Batch(records)):
                    yield text
        finally:
            await source.close()
    except Exception as error:
        raise clean_error(error, declared) from None
