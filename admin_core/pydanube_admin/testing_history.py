"""The history that a cluster in memory tells: two moments, between which something came in and nothing was read."""

from __future__ import annotations

from pydanube_core.cluster_port import ClusterPort, CursorHistory, TopicHistory


async def two_moments(
    port: ClusterPort, topic: str, subscription: str | None, *, most: int, now_ms: int
) -> TopicHistory:
    """A minute ago and now: each log got a message and nothing was acknowledged."""
    logs = [log for log in await port.topic(topic) if not log.partitions]
    lags: dict[str, list[int]] = {}
    for log in logs:
        for name in log.subscriptions:
            if subscription in (None, name):
                lag = sum(one.lag_messages for one in await port.subscriptions(log.topic, name))
                lags.setdefault(name, []).append(lag)
    worst = sorted(lags, key=lambda name: (-sum(lags[name]), name))
    head = sum(log.next_offset or 0 for log in logs)
    return TopicHistory(
        times_ms=[now_ms - 60_000, now_ms],
        published=[head - len(logs), head],
        cursors={
            name: CursorHistory(
                lag_messages=[sum(lags[name]) - len(lags[name]), sum(lags[name])], acknowledged=[0, 0]
            )
            for name in worst[:most]
        },
        more_cursors=max(0, len(worst) - most),
    )
