"""The topics that a consumer receives from: one, a list or a pattern, looked up again from time to time.

Topics and partitions that are made later join by themselves, from their first message; topics that are deleted leave. The looking is
bounded: once each `refresh_s`, one call for all of them, and never more than `max_topics`.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, Final

from pydanube_core.errors import ClusterError, Fatal, InvalidArgument, TopicNotFound
from pydanube_core.names import TopicName
from pydanube_core.topic_pattern import TopicPattern

MOST_TOPICS: Final = 1000  # what one answer of a broker holds

#: (index, concrete topic) of each; index None: the topic has no partitions
Partitions = list[tuple[int | None, str]]

_log = logging.getLogger("pydanube")


class TopicChoice:
    """The topics asked for: names, or a pattern.

    Args:
        topics: names, in any form.
        pattern: instead of them.

    Raises:
        InvalidArgument: both, none, too many, or a name twice.
        InvalidName: what is no name or pattern.
    """

    def __init__(self, topics: Sequence[str] | None, pattern: str | None, max_topics: int) -> None:
        if (topics is None) == (pattern is None):
            raise InvalidArgument(
                "give topics or a pattern, one of them", field="pattern", value=repr(pattern)[:200]
            )
        self.names: tuple[str, ...] = ()
        if pattern is not None:
            self.patterns: tuple[str, ...] = (str(TopicPattern.parse(pattern)),)
        else:
            assert topics is not None
            self.names = tuple(str(TopicName.parse(topic)) for topic in topics)
            if not self.names or len(set(self.names)) < len(self.names) or len(self.names) > max_topics:
                raise InvalidArgument(
                    f"topics are 1 to {max_topics} different ones (max_topics), got {len(self.names)}",
                    field="topic",
                    value=list(self.names)[:20],
                )
            self.patterns = self.names

    def __str__(self) -> str:
        shown = ", ".join(self.patterns[:3])
        return shown if len(self.patterns) <= 3 else f"{shown} and {len(self.patterns) - 3} more"


class TopicWatch:
    """Finds and follows the topics of one consumer.

    Args:
        choice: what was asked for.
        match: the names there are now with their numbers of partitions (0: none), and whether there were more than
            asked for.
        prepare: a topic's full name and partitions; made if it is to be.
        create: make topics of the list that do not exist.
        max_topics: at most so many.
        refresh_s: between two looks.
        several: False: one topic, whose partitions are watched.
    """

    def __init__(
        self,
        choice: TopicChoice,
        *,
        match: Callable[[Sequence[str], int], Coroutine[Any, Any, tuple[dict[str, int], bool]]],
        prepare: Callable[[str, bool], Coroutine[Any, Any, tuple[str, Partitions]]],
        create: bool,
        max_topics: int,
        refresh_s: float,
        several: bool,
    ) -> None:
        self.choice = choice
        self.several = several
        self._match = match
        self._prepare = prepare
        self._create = create
        self._max_topics = max_topics
        self._refresh_s = refresh_s
        self._told = False

    def may_leave(self, partition: int | None) -> tuple[type[ClusterError], ...]:
        """Return the errors of one topic that do not end the consumer, which continues with the others.

        Of a lone topic, partitions may be taken away again; the first goes with the topic.
        """
        if self.several and not self.choice.names:
            return (Fatal,)
        return (TopicNotFound,) if self.several or partition else ()

    async def first(self) -> dict[str, Partitions]:
        """Return the topics at the opening; of a list all of them, or raise `TopicNotFound`."""
        if self.choice.names:
            return dict([await self._prepare(name, self._create) for name in self.choice.names])
        return await self._look({})

    async def following(self, known: Callable[[], Mapping[str, int]]) -> dict[str, Partitions]:
        """Wait a while, and look: return the topics that are new, or have other partitions than known."""
        await asyncio.sleep(self._refresh_s * random.uniform(0.8, 1.2))  # many consumers do not ask at once
        return await self._look(known())

    async def _look(self, known: Mapping[str, int]) -> dict[str, Partitions]:
        names, more = await self._match(self.choice.patterns, self._max_topics)
        fresh = [name for name in names if name not in known]
        grown = [name for name, count in names.items() if count and count != known.get(name, count)]
        room = max(0, self._max_topics - len(known))
        if (more or len(fresh) > room) and not self._told:
            self._told = True
            _log.warning(
                "%s is more than %d topics: the others are not consumed; give a larger max_topics, %d at most",
                self.choice,
                self._max_topics,
                MOST_TOPICS,
            )
        found: dict[str, Partitions] = {}
        for name in [*grown, *fresh[:room]]:
            try:
                topic, partitions = await self._prepare(name, False)
            except TopicNotFound:  # deleted meanwhile
                continue
            found[topic] = partitions
        return found
