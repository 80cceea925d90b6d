"""Three brokers, two topics, their clients, an operator who moves topics about, and what goes wrong: one seed of it.

A run has two parts: for `FAULTY_MS` things go wrong, then nothing does, and everything has to come to its end.
"""

from __future__ import annotations

from collections import Counter
from typing import Any, Final

from pydanube_broker.cluster import keys
from pydanube_broker.cluster.assignment import Assignment
from pydanube_broker.cluster.epochs import EpochRecord
from pydanube_broker.cluster.ids import BrokerId, Epoch, Incarnation, TopicId
from pydanube_broker.cluster.move_record import Stage
from pydanube_broker.journal.records import RecordKind
from pydanube_broker.moves.move import PATIENCE_MS, begin
from pydanube_broker.topics.log_state import encode_open_body, encode_session_body
from pydanube_broker.topics.producers import Opening
from pydanube_core.errors import ClusterError
from pydanube_core.names import TopicName
from pydanube_storage.metadata import Absent, ModRevision, Put, Revision

from tests.broker.cluster.simulation.broker import LEASE_MS, PRODUCER, SESSION, TOKEN, SimBroker
from tests.broker.cluster.simulation.history import History
from tests.broker.cluster.simulation.world import (
    SimEtcd,
    SimStore,
    Violation,
    World,
    require,
    stage_of,
)

FAULTY_MS: Final = 40_000
# A move that hangs is taken on by the leader, and that twice if the first choice dies with the faults' end.
CALM_MS: Final = 2 * PATIENCE_MS + 40_000
BROKERS: Final = (1, 2, 3)
TOPICS: Final = (TopicId(71), TopicId(72))
_PUBLISH_MS: Final = 1_500
_RETRY_MS: Final = 3_000
REMOVED_MS: Final = 20_000  # by when who is gone was removed, whatever goes wrong
_GONE: Final = 0.12  # of the faults, a broker that is gone for good
_GONE_AT_MOST: Final = 2
_AFTER_A_STEP: Final = 0.25  # a fault right behind a step of a move, as share of all steps


class SimCluster:
    """See the module. `broker`: the class to make brokers of, so that a bug can be planted."""

    def __init__(self, seed: int, broker: type[SimBroker] = SimBroker) -> None:
        self.world = World(seed)
        self.etcd = SimEtcd(self.world)
        self.store = SimStore(self.world)
        self.histories = {topic_id: History(topic_id) for topic_id in TOPICS}
        self.brokers = {
            number: broker(number, self.world, self.etcd, self.store, self.histories) for number in BROKERS
        }
        for each in self.brokers.values():
            each.peers = self.brokers
        self._believed = dict.fromkeys(TOPICS, 1)  # owners, as clients know them
        self._next_sequence = dict.fromkeys(TOPICS, 0)
        self._gone: list[int] = []  # brokers that are to be removed
        self._removals: list[int] = []  # those that are, as etcd was told
        for topic_id in TOPICS:
            self._create(topic_id)
        self.etcd.on_change = self._changed
        for each in self.brokers.values():
            each.start()
        for topic_id in TOPICS:
            self._publish(topic_id)
            self._consume(topic_id)
            self._flush(topic_id)
            self.world.after(self.world.random.randint(500, 4_000), lambda t=topic_id: self._move(t))  # type: ignore[misc]
        self.world.after(2_000, self._trouble)

    def _create(self, topic_id: TopicId) -> None:
        owner = self.brokers[self.world.random.choice(BROKERS)]
        name = TopicName("default", f"t{topic_id}")
        record = Assignment(
            topic_id=topic_id, topic=name, broker_id=owner.id, incarnation=Incarnation(1), epoch=Epoch(1)
        )
        self.etcd.engine.transact(
            [],
            [
                Put(keys.assignment_key(topic_id), record.to_json()),
                Put(keys.epoch_key(name), EpochRecord(epoch=1).to_json()),
            ],
        )
        self.etcd.engine.take_changes()
        opening = Opening(PRODUCER, 1, TOKEN, "p")
        owner.disk.append((RecordKind.TOPIC_OPEN, topic_id, encode_open_body(1, 0)))
        owner.disk.append((RecordKind.SESSION, topic_id, encode_session_body(opening)))

    def run(self) -> None:
        """Raises `Violation` with what was wrong."""
        self.world.run(FAULTY_MS)
        self.world.faults = False
        self.store.down = False
        self.store.blind.clear()
        if not self._gone and self.world.random.random() < 0.5:  # one broker's way to the store stays cut
            self.store.blind.add(self.world.random.choice(BROKERS))
        end_ms = FAULTY_MS + CALM_MS
        while self.world.now_ms < end_ms and not self._is_quiet():
            self.world.run(self.world.now_ms + 5_000)
        require(sorted(self._removals) == sorted(self._gone), "removed:", self._removals, "of", self._gone)
        for number in self.removed:
            require(not self.brokers[number].up, "a removed broker goes on:", number)
        before = {topic_id: len(history.acknowledged) for topic_id, history in self.histories.items()}
        self.world.run(self.world.now_ms + 2 * _RETRY_MS + 2_000)
        for topic_id, history in self.histories.items():
            record, _ = self.etcd.assignment(topic_id)
            require(record.stage is Stage.SERVING, "a move does not end:", record)
            run = self.brokers[record.broker_id].runs[topic_id]
            require(run.participant.serving, "the owner does not serve:", record, run.participant.phase)
            assert run.state is not None
            self.brokers[record.broker_id].check_log(run)
            require(len(history.acknowledged) > before[topic_id], "a publish is never answered:", topic_id)
            sealed = record.sealed_epoch
            for other in self._there():
                left = other.runs[topic_id]
                require(
                    other.id == record.broker_id or not left.participant.serving,
                    "two serve:",
                    record,
                    other.id,
                )
                require(
                    other.id == record.broker_id
                    or left.participant.held == 0
                    or left.participant.held > sealed,
                    "a broker keeps what it handed over:",
                    other.id,
                    left.participant.held,
                )
                require(
                    left.participant.held > 0 or left.state is None,
                    "a copy that nobody wants stays:",
                    other.id,
                )

    def _is_quiet(self) -> bool:
        """Whether every broker is there and every topic served: then a little later there is nothing left to come."""
        return all(
            record.broker_id not in self.removed
            and record.stage is Stage.SERVING
            and self.brokers[record.broker_id].runs[topic_id].participant.serving
            for topic_id, record in ((topic_id, self.etcd.assignment(topic_id)[0]) for topic_id in TOPICS)
        ) and (
            all(each.up and each.paused_until_ms <= self.world.now_ms for each in self._there())
            and len(self._removals) == len(self._gone)
            and not any(self.brokers[number].up for number in self.removed)
        )

    @property
    def removed(self) -> set[int]:
        return self.histories[TOPICS[0]].removed

    def _there(self) -> list[SimBroker]:
        return [each for each in self.brokers.values() if each.id not in self.removed]

    # -- clients ---------------------------------------------------------------------------------------------

    def _publish(self, topic_id: TopicId) -> None:
        """One message after the other; the same one until it is answered, like a producer that retries."""
        world, history = self.world, self.histories[topic_id]
        history.under_way = sequence = self._next_sequence[topic_id]
        answered = False

        def reply(outcome: Any) -> None:
            nonlocal answered
            if answered or sequence in history.acknowledged or sequence in history.lost:
                return
            answered = True
            if isinstance(outcome, int):
                history.told(sequence, outcome)
                self._next_sequence[topic_id] = sequence + 1
                world.after(world.random.randint(1, _PUBLISH_MS), lambda: self._publish(topic_id))
            elif outcome == "out of sequence":  # its session is an older one, or gone: a new one
                require(len(history.gaps) > sequence // SESSION, "a retry was refused:", sequence)
                self._next_sequence[topic_id] = (sequence // SESSION + 1) * SESSION
                world.after(200, lambda: self._publish(topic_id))
            else:
                require(outcome == "not owner", "a retry was refused:", outcome)
                self._ask_elsewhere(topic_id)
                world.after(200, lambda: self._publish(topic_id))

        def send() -> None:
            broker = self.brokers[self._believed[topic_id]]
            if broker.up:
                broker.later(
                    0,
                    lambda: broker.publish(
                        topic_id, sequence, lambda got: world.after(5, lambda: reply(got))
                    ),
                )

        def overdue() -> None:
            nonlocal answered
            if not answered and sequence not in history.acknowledged and sequence not in history.lost:
                answered = True
                self._ask_elsewhere(topic_id)
                self._publish(topic_id)

        world.after(world.random.randint(1, 20), send)
        if world.chance(0.05):  # a retry of an impatient client: both may be carried out
            world.after(world.random.randint(20, 400), send)
        world.after(_RETRY_MS, overdue)

    def _ask_elsewhere(self, topic_id: TopicId) -> None:
        self._believed[topic_id] = self.etcd.assignment(topic_id)[0].broker_id

    def _consume(self, topic_id: TopicId) -> None:
        world, history = self.world, self.histories[topic_id]
        unacknowledged = sorted(set(history.acknowledged.values()) - history.acks_confirmed)[:5]
        if unacknowledged:
            chosen = sorted(world.random.sample(unacknowledged, min(2, len(unacknowledged))))
            broker = self.brokers[self._believed[topic_id]]

            def send() -> None:
                if broker.up:
                    history.acks_sent.update(chosen)
                    broker.later(0, lambda: broker.acknowledge(topic_id, chosen, reply))

            def reply(outcome: Any) -> None:
                if isinstance(outcome, list) and broker.id not in history.removed:
                    history.acks_confirmed.update(each for each in outcome if not history.is_lost(each))

            world.after(5, send)
        world.after(world.random.randint(500, 3_000), lambda: self._consume(topic_id))

    def _flush(self, topic_id: TopicId) -> None:
        for each in self.brokers.values():
            each.flush(topic_id)
        self.world.after(self.world.random.randint(1_000, 4_000), lambda: self._flush(topic_id))

    def _move(self, topic_id: TopicId) -> None:
        """The operator's move: to any broker, while faults happen."""
        if not self.world.faults:
            return
        record, revision = self.etcd.assignment(topic_id)
        others = [each.id for each in self._there() if each.id != record.broker_id]
        if record.stage is Stage.SERVING and others:
            target = BrokerId(self.world.random.choice(others))
            # Some topics have so little to copy that their owner stops before anything is copied
            life = Incarnation(self.brokers[target].life) if self.world.random.random() < 0.3 else None
            change = begin(record, revision, target, at_ms=self.world.now_ms, ready=life)
            key = keys.assignment_key(topic_id)
            put = Put(key, change.after.to_json())
            self.world.note(f"operator moves topic {topic_id} to {target}")
            self.etcd.call(
                lambda: self.etcd.engine.transact([ModRevision(key, revision)], [put]), lambda _: None
            )
        self.world.after(self.world.random.randint(300, 3_000), lambda: self._move(topic_id))

    # -- faults ----------------------------------------------------------------------------------------------

    def _changed(self, topic_id: TopicId, record: Assignment, revision: Revision) -> None:
        self.world.note(
            f"topic {topic_id} at {revision}: {stage_of(record)}, broker {record.broker_id}, epoch {record.epoch}"
        )
        if stage_of(record) == "ready":  # an object may be on its way to the catalog when its owner stops
            self.world.after(
                self.world.random.randint(0, 60), lambda: self.brokers[record.broker_id].flush(topic_id)
            )
        history = self.histories[topic_id]
        history.moves += record.moved != history.moved
        history.moved = record.moved
        for broker in self.brokers.values():
            broker.changed(topic_id, record, revision)
        if self.world.chance(_AFTER_A_STEP):
            delay = self.world.random.randint(0, 150)
            self.world.after(delay, lambda: self._hit(topic_id))

    def _trouble(self) -> None:
        if self.world.faults:
            self._hit(self.world.random.choice(TOPICS))
            self.world.after(self.world.random.randint(2_000, 8_000), self._trouble)

    def _hit(self, topic_id: TopicId) -> None:
        """One fault, at whoever has a part in what happens to a topic."""
        world, random = self.world, self.world.random
        if not world.faults:
            return
        record, _ = self.etcd.assignment(topic_id)
        target = record.broker_id if record.move is None else BrokerId(int(record.move.target))
        leader = next(
            (each.id for each in self.brokers.values() if each.leadership is not None), record.broker_id
        )
        whom = {"owner": record.broker_id, "target": target, "leader": leader}
        role = random.choice(tuple(whom))
        broker = self.brokers[whom[role]]
        kind = random.choice(("crash", "pause", "store"))
        if not broker.up or broker.id in self._gone:
            return
        if len(self._gone) < _GONE_AT_MOST and random.random() < _GONE:
            self._goes(broker)
            return
        if kind != "store" and (role != "target" or record.move is not None):
            world.coverage[f"{kind} {role}", stage_of(record)] += 1
        match kind:
            case "crash":
                broker.crash()
            case "pause":
                broker.pause(random.randint(100, 15_000))
            case _:
                world.coverage["store away", stage_of(record)] += 1
                self._store_away(None if random.random() < 0.5 else broker.id)

    def _goes(self, broker: SimBroker) -> None:
        """A broker does not come back, or not before it was removed: two operators see to that once its lease is over."""
        self._gone.append(broker.id)
        if self.world.random.random() < 0.5:
            broker.crash(for_good=True)
        else:
            broker.pause(REMOVED_MS + self.world.random.randint(1_000, 15_000))
        for _ in range(2):
            self.world.after(LEASE_MS, lambda: self._remove(broker))

    def _remove(self, broker: SimBroker) -> None:
        removed, member = keys.removed_key(broker.id), keys.member_key(broker.id)

        def work() -> None:
            self.etcd.engine.transact([Absent(removed), Absent(member)], [Put(removed, b"{}")])
            self._removals.append(broker.id)
            self.world.note(f"broker {broker.id} is removed")
            for history in self.histories.values():
                history.removed.add(broker.id)

        def done(_: Any) -> None:
            if broker.id not in self.removed:
                self.world.after(500, lambda: self._remove(broker))

        self.etcd.call(work, done)

    def _store_away(self, only: BrokerId | None) -> None:
        self.world.note(f"the store is away for {'all' if only is None else only}")
        if only is None:
            self.store.down = True
        else:
            self.store.blind.add(only)

        def back() -> None:
            if self.world.faults:
                self.store.blind.discard(only or 0)
            self.store.down = self.store.down and only is not None

        self.world.after(self.world.random.randint(200, 8_000), back)


def run_seed(
    seed: int, broker: type[SimBroker] = SimBroker
) -> tuple[SimCluster, AssertionError | ClusterError | None]:
    """One run, and what was wrong with it."""
    cluster = SimCluster(seed, broker)
    try:
        cluster.run()
    except (Violation, AssertionError, ClusterError) as error:
        return cluster, error
    return cluster, None


#: what can go wrong, and the stages of a move in which it can
FAULTS: Final = (
    "request lost", "answer lost", "doubled", "late", "store away",
    "crash owner", "crash target", "crash leader", "pause owner", "pause target", "pause leader",
    "owner removed",
)  # fmt: skip


def impossible(fault: str, stage: str) -> bool:
    """A topic that is not moving has no target; the owner of one that is sealed was removed."""
    if fault == "owner removed":
        return stage in ("sealed", "assigned")
    if fault.endswith("owner"):
        return stage == "sealed"
    return fault.endswith("target") and stage == "serving"


def coverage_table(coverage: Counter[tuple[str, str]], stages: tuple[str, ...]) -> str:
    lines = [f"{'':>14}" + "".join(f"{stage:>10}" for stage in stages)]
    for fault in FAULTS:
        cells = ("-" if impossible(fault, stage) else str(coverage[fault, stage]) for stage in stages)
        lines.append(f"{fault:>14}" + "".join(f"{cell:>10}" for cell in cells))
    return "\n".join(lines)
