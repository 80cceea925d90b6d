"""Turn rounds of the sampler into rows of the telemetry tables. Pure.

Each round has rows of the changed cursors and of the broker. Rows of heads, consumers and loads of topics are less
frequent, so `RoundRows` keeps the last sample of each.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from operator import attrgetter
from typing import Any, Final

from pydanube_core.observation import BrokerSample, ConsumerSample, CursorSample, HeadSample, Round
from pydanube_core.telemetry.tables import (
    BROKERS,
    CONSUMERS,
    CURSOR_STATE,
    HEADS,
    HEADS_EVERY,
    LOAD_EVERY,
    ColumnType,
    Table,
    rounded_age_ms,
)

_state_columns: Final = attrgetter(*CURSOR_STATE)

Row = tuple[Any, ...]


def _columns(table: Table) -> Callable[[Any], Row]:
    """Return a reader of a table's columns after `taken_at` and `broker_id` from a sample, whose times end in `_ms`."""
    return attrgetter(
        *(f"{each.name}_ms" if each.kind is ColumnType.TIME else each.name for each in table.columns[2:])
    )


_head: Final = _columns(HEADS)
_consumer: Final = _columns(CONSUMERS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """Facts that do not change while the broker runs. Undeclared capacities are None."""

    broker_id: str
    incarnation: int  # of this start of the broker
    cpus: int | None
    memory_bytes: int | None
    network_in_bytes_per_s: float | None = None
    network_out_bytes_per_s: float | None = None


LEAVING: Final = ("draining", "drained")  # states in rows of a broker that gets no topics


class RoundRows:
    """Keeps the last samples. Single user.

    Args:
        state: returns the state in this broker's registration.
    """

    def __init__(self, machine: Machine, state: Callable[[], str]) -> None:
        self._machine = machine
        self._state = state
        self._heads: dict[int, HeadSample] = {}
        self._cursors: dict[tuple[int, int], CursorSample] = {}
        self._consumers: dict[tuple[int, int], dict[int, ConsumerSample]] = {}
        self._changed: dict[tuple[int, int], CursorSample] = {}  # since the last rows
        self._rounds = 0
        self._last_broker_row: Row | None = None

    def take(self, found: Round, *, due: bool = True) -> Mapping[str, Sequence[Row]]:
        """Return the rows of a round, by table, or nothing if they are not `due`. The next ones then have its changes.

        All rows have the round's time. So the times of a subject differ by whole intervals, which compress well.
        """
        for topic_id in found.gone_topics:
            self._heads.pop(topic_id, None)
            for key in [key for key in self._cursors if key[0] == topic_id]:
                self._forget(key)
        for key in found.gone_subscriptions:
            self._forget(key)
        for head in found.heads:
            self._heads[head.topic_id] = head
        sampled: dict[tuple[int, int], dict[int, ConsumerSample]] = {}
        for cursor in found.cursors:
            key = cursor.topic_id, cursor.subscription_id
            self._cursors[key] = self._changed[key] = cursor
            sampled[key] = {}
        for consumer in found.consumers:
            sampled.setdefault((consumer.topic_id, consumer.subscription_id), {})[consumer.consumer_id] = (
                consumer
            )
        self._consumers |= sampled  # a subscription's sample comes with those of all its consumers
        if not due:
            return {}
        taken, broker_id = found.taken_at_ms, self._machine.broker_id
        changed, self._changed = self._changed, {}
        rows: dict[str, Sequence[Row]] = {
            "cursors": [_cursor(cursor, taken, self._machine) for cursor in changed.values()]
        }
        first = self._rounds == 0
        if first or self._rounds % HEADS_EVERY == 0:
            rows["heads"] = [(taken, broker_id, *_head(head)) for head in self._heads.values()]
        if first or self._rounds % LOAD_EVERY == 0:
            rows["topics"] = self._loads(taken)
            rows["consumers"] = [
                (taken, broker_id, *_consumer(consumer))
                for consumers in self._consumers.values()
                for consumer in consumers.values()
            ]
        self._last_broker_row = self._broker(found.broker, taken)
        rows["brokers"] = [self._last_broker_row]
        self._rounds += 1
        return rows

    def stopped_row(self, taken_ms: int) -> Row | None:
        """Return the broker's last row, with state `stopped`. None if no round was written."""
        if self._last_broker_row is None:
            return None
        facts = dict(zip(BROKERS.names, self._last_broker_row, strict=True))
        facts |= {"state": "stopped", "taken_at": max(taken_ms, facts["taken_at"] + 1)}
        return tuple(facts.values())

    def _forget(self, key: tuple[int, int]) -> None:
        self._cursors.pop(key, None)
        self._changed.pop(key, None)
        self._consumers.pop(key, None)

    def _loads(self, taken: int) -> list[Row]:
        out: dict[int, list[int]] = {}
        for (topic_id, _), cursor in self._cursors.items():
            sums = out.setdefault(topic_id, [0, 0])
            sums[0] += cursor.state.lag_messages
            sums[1] += 1
        return [
            (
                taken,
                self._machine.broker_id,
                self._machine.incarnation,
                head.topic,
                head.topic_id,
                head.partition,
                head.messages_in,
                head.bytes_in,
                head.messages_out,
                head.bytes_out,
                unread,
                head.producers,
                head.consumers,
                subscriptions,
                head.refused,
                head.retention_age_s,
                head.retention_bytes,
                head.drop_unread,
            )
            for head in self._heads.values()
            for unread, subscriptions in [out.get(head.topic_id, (0, 0))]
        ]

    def _broker(self, sample: BrokerSample, taken: int) -> Row:
        state = self._state()
        shown = state if state in LEAVING else "active"
        known = {**sample._asdict(), **asdict(self._machine), "taken_at": taken, "state": shown}
        return tuple(known[name] for name in BROKERS.names)


def removed_row(broker_id: str, taken_ms: int) -> Row:
    """Return the row with state `removed` for another broker. Its other columns are empty."""
    nothing = {
        ColumnType.INT: 0,
        ColumnType.FLOAT: 0.0,
        ColumnType.TEXT: "",
        ColumnType.TIME: taken_ms,
        ColumnType.FLAG: False,
    }
    facts = {each.name: None if each.nullable else nothing[each.kind] for each in BROKERS.columns}
    facts |= {"broker_id": broker_id, "state": "removed"}
    return tuple(facts.values())


def _cursor(sample: CursorSample, taken: int, machine: Machine) -> Row:
    oldest = sample.oldest_unread_append_ms
    return (
        taken,
        machine.broker_id,
        machine.incarnation,
        sample.topic,
        sample.topic_id,
        sample.partition,
        sample.subscription,
        sample.subscription_id,
        *_state_columns(sample.state),
        None if oldest is None else rounded_age_ms(max(0, taken - oldest)),
        sample.type,
    )
