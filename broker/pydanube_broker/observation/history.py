"""The window of one topic as a series: published messages, and the lag of each subscription.

A state is sampled a moment after its round began. So the state of a round is the newest one from before the next round.
"""

from __future__ import annotations

from collections.abc import Sequence

from pydanube_core.cluster_port import CursorHistory, TopicHistory
from pydanube_core.cursor_state import CursorState

from pydanube_broker.delivery.any_pump import AnyPump
from pydanube_broker.observation.sampler import Sampler
from pydanube_broker.slices import Slices
from pydanube_broker.topics.topic import Topic, now_ms

Series = list[int | None]


async def history_of(
    logs: Sequence[Topic], sampler: Sampler, *, subscription: str | None, most: int
) -> TopicHistory:
    """Return the history of a topic with these `logs`. O(logs x subscriptions shown x points), in slices."""
    now = now_ms()
    rounds = sampler.rounds
    every = rounds.within(0, now)
    # Without rounds of the last half interval, which is too short for a rate. The state of the round before ends there.
    times = [time for time in every if time <= now - int(rounds.interval_s * 500)]
    ends = [*(time - 1 for time in every[1:]), now][: len(times)]
    slices = Slices()
    published: list[Series] = []
    for log in logs:
        await slices()
        track = sampler.tracks.get(log.topic_id)
        past = _past_of(log, sampler, next(iter(log.subscriptions.values()), None), ends)
        seen: Series = [
            (None if state is None else state.next_offset)
            if track is None or end < track.first_ms
            else track.offset_at(end)
            for end, state in zip(ends, past, strict=True)
        ]
        published.append([*seen, log.commit])
    chosen, more = _furthest_behind(logs, subscription, most)
    cursors = {}
    for name in chosen:
        lags: list[Series] = []
        acknowledged: list[Series] = []
        for log in logs:
            await slices()
            if (pump := log.subscriptions.get(name)) is None:
                continue
            track = sampler.tracks.get(log.topic_id)
            cursor = None if track is None else track.cursors.get(name)
            if cursor is not None and cursor.subscription_id != pump.subscription_id:
                cursor = None
            past = _past_of(log, sampler, pump, ends)
            states = [
                before if cursor is None else cursor.seen_by(end) or before
                for end, before in zip(ends, past, strict=True)
            ]
            states.append(pump.cursor_state(now))
            lags.append([None if state is None else state.lag_messages for state in states])
            acknowledged.append([None if state is None else state.acknowledged for state in states])
        if lags:  # else it was deleted while other tasks had their turn
            cursors[name] = CursorHistory(lag_messages=sum_of(lags), acknowledged=sum_of(acknowledged))
    return TopicHistory(
        times_ms=[*times, now], published=sum_of(published), cursors=cursors, more_cursors=more
    )


def _past_of(
    log: Topic, sampler: Sampler, pump: AnyPump | None, ends: Sequence[int]
) -> list[CursorState | None]:
    """Return the states of a subscription in the broker's run before this one."""
    if pump is None or not sampler.past.times:
        return [None] * len(ends)
    found = sampler.past.states(log.topic_id, pump.subscription_id, ends)
    return [None if each is None else each[0] for each in found]


def _furthest_behind(logs: Sequence[Topic], subscription: str | None, most: int) -> tuple[list[str], int]:
    now = now_ms()
    lag: dict[str, int] = {}
    for log in logs:
        for name, pump in log.subscriptions.items():
            if subscription in (None, name):
                lag[name] = lag.get(name, 0) + pump.cursor_state(now).lag_messages
    worst = sorted(lag, key=lambda name: (-lag[name], name))
    return worst[:most], max(0, len(worst) - most)


def sum_of(series: Sequence[Series]) -> Series:
    """Add series point by point. None where one of them has no value."""
    summed: Series = []
    for values in zip(*series, strict=True):
        known = [value for value in values if value is not None]
        summed.append(sum(known) if len(known) == len(values) else None)
    return summed
