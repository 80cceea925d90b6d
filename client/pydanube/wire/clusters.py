"""Connections to several clusters, of which one has each topic: a link mirrors it to the others until it is failed over.

A topic is at the cluster that neither mirrors it nor has lost it to a fail-over. If that is true of several, because the
former one was cut off at the fail-over and came back, it is at the one that took it over last. Each connection looks the
topic up at all clusters, so that clients change over as soon as the topic does.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Sequence
from typing import Final, NamedTuple

from pydanube_core.errors import ClusterError, Retryable, TopicNotFound, Unavailable
from pydanube_core.generated import danube_stream_pb2 as pb
from pydanube_core.names import TopicName

from pydanube.retry import Retry
from pydanube.wire.connections import Connections
from pydanube.wire.transport import Transport, TransportFactory

LOOK_S: Final = 8.0  # longest time for the answers of all clusters: more than a connection takes to fail
OTHERS_S: Final = 1.0  # the same for the others, once one has the topic
PAUSE_S: Final = 2.0  # longest wait at one cluster for a topic, which may be failed over to another meanwhile
SHARED_S: Final = 0.5  # for which partitions that connect together share an answer
MOST_HOMES: Final = 10_000


class _Home(NamedTuple):
    """The cluster that had a topic last, the number of fail-overs to it, and the time of the look-up."""

    cluster: int
    fail_overs: int
    at_s: float


class _Cluster(Connections):
    """One of them. Its transports are those of all."""

    def __init__(
        self, urls: Sequence[str], make: TransportFactory, retry: Retry, all_of: Connections
    ) -> None:
        super().__init__(urls, make, retry)
        self._all = all_of

    def to(self, url: str) -> Transport:
        return self._all.to(url)

    async def look(self, topic: str) -> pb.ResolveResponse | ClusterError:
        """Return the cluster's answer about a topic, or the error of the last broker that was tried."""
        request = pb.ResolveRequest(topic=topic)
        for _ in range(len(self._known)):
            try:
                return await self._resolve(request)
            except Unavailable as error:
                failed: ClusterError = error
            except ClusterError as error:
                return error
        return failed


class Clusters(Connections):
    """See the module. The first cluster makes topics that none has."""

    def __init__(self, groups: Sequence[Sequence[str]], make: TransportFactory, retry: Retry) -> None:
        super().__init__(groups[0], make, retry)
        self._clusters = [_Cluster(urls, make, retry, self) for urls in groups]
        self._homes: dict[str, _Home] = {}
        self._latest = 0  # the cluster of the topic that was looked up last. Calls about no topic go there

    async def call(self, path: str, request: bytes, timeout_s: float) -> bytes:
        return await self._clusters[self._latest].call(path, request, timeout_s)

    async def _resolve(self, request: pb.ResolveRequest, *, timeout_s: float = LOOK_S) -> pb.ResolveResponse:
        home = self._clusters[await self._home(request.topic)]
        return await home._resolve(request, timeout_s=timeout_s)

    async def locate(self, concrete_topic: str) -> Transport:
        return await self._clusters[await self._home(concrete_topic)].locate(concrete_topic)

    async def pause(
        self, concrete_topic: str, failure: ClusterError, delay_s: float, left_s: float = math.inf
    ) -> None:
        base = str(TopicName.parse(concrete_topic).base)
        known = self._homes.get(base)
        if known is not None:
            self._homes[base] = known._replace(at_s=0.0)
        await self._clusters[self._latest if known is None else known.cluster].pause(
            concrete_topic, failure, delay_s, min(left_s, max(delay_s, PAUSE_S))
        )

    async def _home(self, topic: str) -> int:
        """Return the number of the cluster that has a topic, and 0 if all answer that there is none.

        Raises `Unavailable`: none has it, or not all have answered. Errors of the first cluster that may not pass.
        """
        base = str(TopicName.parse(topic).base)
        known = self._homes.get(base)
        if known is not None and time.monotonic() - known.at_s < SHARED_S:
            return known.cluster
        answers = await self._look_up(base)
        found = {
            number: answer.fail_overs
            for number, answer in answers.items()
            if isinstance(answer, pb.ResolveResponse) and not answer.mirror_of and not answer.failed_over_to
        }
        if known is not None and _is_silent(answers.get(known.cluster)):
            # A topic of the same name that another cluster always had is not this one: its former one may come back.
            found = {number: count for number, count in found.items() if count > known.fail_overs}
        if found:
            home = max(found, key=lambda number: (found[number], -number))
        elif all(isinstance(answers.get(number), TopicNotFound) for number in range(len(self._clusters))):
            return 0
        else:
            first = answers.get(0)
            if isinstance(first, ClusterError) and not isinstance(first, Retryable | TopicNotFound):
                raise first
            raise Unavailable(
                f"no cluster of this client takes clients of {base} now: "
                + "; ".join(
                    f"{each.url}: {_answered(answers.get(number))}"
                    for number, each in enumerate(self._clusters)
                ),
                topic=base,
            )
        while len(self._homes) >= MOST_HOMES:
            del self._homes[next(iter(self._homes))]
        self._homes[base], self._latest = _Home(home, found[home], time.monotonic()), home
        return home

    async def _look_up(self, topic: str) -> dict[int, pb.ResolveResponse | ClusterError]:
        """Return the answer of each cluster. Those that are late are left out."""
        tasks = [asyncio.create_task(each.look(topic)) for each in self._clusters]
        try:
            waiting, until_s = set(tasks), time.monotonic() + LOOK_S
            while waiting and (left_s := until_s - time.monotonic()) > 0:
                done, waiting = await asyncio.wait(
                    waiting, timeout=left_s, return_when=asyncio.FIRST_COMPLETED
                )
                if any(isinstance(task.result(), pb.ResolveResponse) for task in done):
                    until_s = min(until_s, time.monotonic() + OTHERS_S)
            return {number: task.result() for number, task in enumerate(tasks) if task.done()}
        finally:
            for task in tasks:
                task.cancel()


def _is_silent(answer: pb.ResolveResponse | ClusterError | None) -> bool:
    """Return whether a cluster has not answered where the topic is."""
    return answer is None or isinstance(answer, Retryable)


def _answered(answer: pb.ResolveResponse | ClusterError | None) -> str:
    match answer:
        case None:
            return "no answer"
        case ClusterError():
            return answer.message
        case _ if answer.mirror_of:
            return f"the topic is a mirror ({answer.mirror_of}) and was not failed over"
        case _:
            return f"the topic was failed over to the cluster {answer.failed_over_to}"
