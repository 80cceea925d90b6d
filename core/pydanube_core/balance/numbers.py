"""Even out brokers' numbers of topics regardless of load: for topics that are idle now, as after adding a broker."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pydanube_core.balance.plan import Move


def excess_of(counts: Mapping[str, int]) -> dict[str, int]:
    """Return how many topics each broker has above the mean, rounded up. Brokers with none are left out."""
    mean = sum(counts.values()) // max(1, len(counts))
    return {broker: count - mean for broker, count in counts.items() if count > mean}


def moves_by_number(
    counts: Mapping[str, int], movable: Mapping[str, Sequence[str]], *, most: int
) -> list[Move]:
    """Return moves after which no two brokers' numbers of topics differ by more than one.

    Args:
        counts: topics of each broker that takes topics.
        movable: topics that a broker may give away, in the order in which it does.
        most: maximum number of moves.
    """
    now = dict(counts)
    left = {broker: list(reversed(topics)) for broker, topics in movable.items() if broker in now}
    moves: list[Move] = []
    while len(moves) < most:
        giving = [broker for broker, topics in left.items() if topics]
        if not giving:
            break
        source = max(giving, key=lambda broker: (now[broker], broker))
        target = min(now, key=lambda broker: (now[broker], broker))
        if now[source] - now[target] < 2:
            break
        moves.append(
            Move(
                topic=left[source].pop(),
                source=source,
                target=target,
                load={},
                unread_messages=0,
                pause_s=0.0,
                source_before=now[source],
                source_after=now[source] - 1,
                target_before=now[target],
                target_after=now[target] + 1,
            )
        )
        now[source] -= 1
        now[target] += 1
    return moves
