"""The last minutes or hours of one topic as a series: published messages, and the lag of each subscription.

A state is sampled a moment after its round began. So the state of a round is the newest one from before the next round.
Times before the rounds of the window, and before this start of the broker, are answered from the rows of `charted`.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from typing import Final

from pydanube_core.cluster_port import CursorHistory, TopicHistory
from pydanube_core.cursor_state import CursorState
from pydanube_core.interpolation import value_at

from pydanube_broker.delivery.any_pump import AnyPump
from pydanube_broker.observation.charted import Series
from pydanube_broker.observation.sampler import Sampler
from pydanube_broker.slices import Slices
from pydanube_broker.topics.topic import Topic, now_ms

Values = list[int | None]
MOST_PARTS: Final = 60  # of a span that is longer than the window: one a minute in an hour


async def history_of(
    logs: Sequence[Topic],
    sampler: Sampler,
    *,
    subscription: str | None,
    most: int,
    since_s: float | None = None,
) -> TopicHistory:
    """Return the history of a topic with these `logs`. O(logs x subscriptions shown x points), in slices.

    `since_s`: length of the history in seconds, at most since its oldest row. None: the window's length.
    """
    now = now_ms()
    times, ends, exact_ms = moments(logs, sampler, now, since_s)
    older = ends[: bisect_left(ends, exact_ms)]
    slices = Slices()
    published: list[Values] = []
    for log in logs:
        await slices()
        track = sampler.tracks.get(log.topic_id)
        past = _past_of(log, sampler, next(iter(log.subscriptions.values()), None), ends)
        seen: Values = [
            (None if state is None else state.next_offset)
            if track is None or end < track.first_ms
            else track.offset_at(end)
            for end, state in zip(ends, past, strict=True)
        ]
        seen[: len(older)] = _kept(sampler.charted.logs.get(log.topic_id), older, 0)
        published.append([*seen, log.commit])
    chosen, more = _furthest_behind(logs, subscription, most)
    cursors = {}
    for name in chosen:
        lags: list[Values] = []
        acknowledged: list[Values] = []
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
            lag: Values = [None if state is None else state.lag_messages for state in states]
            acks: Values = [None if state is None else state.acknowledged for state in states]
            kept = sampler.charted.cursors.get((log.topic_id, pump.subscription_id))
            lag[: len(older)], acks[: len(older)] = _kept(kept, older, 0), _kept(kept, older, 1)
            lags.append(lag)
            acknowledged.append(acks)
        if lags:  # else it was deleted while other tasks had their turn
            cursors[name] = CursorHistory(lag_messages=sum_of(lags), acknowledged=sum_of(acknowledged))
    return TopicHistory(
        times_ms=[*times, now], published=sum_of(published), cursors=cursors, more_cursors=more
    )


def moments(
    logs: Sequence[Topic], sampler: Sampler, now: int, since_s: float | None
) -> tuple[Sequence[int], Sequence[int], int]:
    """Return the times of the points without now, the end of each one's state, and the time of the first exact state."""
    rounds = sampler.rounds
    every = rounds.within(0 if since_s is None else now - int(since_s * 1000), now)
    end_of = dict(zip(every, [*(time - 1 for time in every[1:]), now], strict=False))  # none without a round
    # Without rounds of the last half interval, which is too short for a rate. The state of the round before ends there.
    last = now - int(rounds.interval_s * 500)
    times = [time for time in every if time <= last]
    if since_s is None or since_s <= rounds.window_s:
        return times, [end_of[time] for time in times], 0
    kept = (sampler.charted.logs.get(log.topic_id) for log in logs)
    known = [rows.first_ms for rows in kept if rows is not None and rows.first_ms is not None]
    begin = max(now - int(since_s * 1000), min([*known, *times[:1], now - int(rounds.interval_s * 1000)]))
    parts = max(1, min(MOST_PARTS, int((now - begin) / (rounds.interval_s * 1000))))
    exact_ms = max(every[0] if every else now, sampler.started_ms)
    points: dict[int, int] = {}
    for part in range(parts):
        time = begin + (now - begin) * part // parts
        # Where there are rounds, a point has the time of one: a rate between two points is over the time between their states
        if (place := bisect_right(every, time)) and every[place - 1] >= exact_ms:
            time = every[place - 1]
        if time <= last or not points:
            points[time] = end_of.get(time, time)
    return list(points), list(points.values()), exact_ms


def _kept(rows: Series | None, times: Sequence[int], place: int) -> Values:
    """Return one of a series' values at each time."""
    if rows is None:
        return [None] * len(times)
    taken, values = rows.column(0), rows.column(1 + place)
    return [value_at(taken, values, time) for time in times]


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


def sum_of(series: Sequence[Values]) -> Values:
    """Add series point by point. None where one of them has no value."""
    summed: Values = []
    for values in zip(*series, strict=True):
        known = [value for value in values if value is not None]
        summed.append(sum(known) if len(known) == len(values) else None)
    return summed
