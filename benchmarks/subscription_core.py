"""Cost of the pure subscription core, without log, wire or clock: nanoseconds a message.

    python benchmarks/subscription_core.py [--batches 1000] [--batch 2000] [--runs 3]

Each line sends every message once and acknowledges it: plan, answer, ack. `exclusive` is the batch path (one range
a batch); `key-shared` routes every message by its slot and acknowledges each consumer's part as the ranges it
received. Slots are computed beforehand: that is the shell's work.
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from collections.abc import Callable, Sequence

from pydanube_broker.subscription.cursor import CursorSnapshot
from pydanube_broker.subscription.members import SubscriptionType
from pydanube_broker.subscription.subscription import Subscription
from pydanube_broker.subscription.terms import ConsumerTerms


def drain(
    type: SubscriptionType, *, consumers: int, keys: int, batch: int, batches: int, single: bool
) -> float:
    """Processor seconds of the core for `batches` batches; making the clients' ranges is not counted."""
    dice = random.Random(1)
    sub = Subscription(type, cursor=CursorSnapshot(floor=0), end=batch * batches)
    terms = ConsumerTerms(credit_messages=10**9, credit_bytes=None, single=single)
    for consumer_id in range(consumers):
        sub.join(consumer_id, f"c{consumer_id}", 0, terms)
    parts = [[dice.randrange(keys) * 65 % 65_536 for _ in range(batch)] for _ in range(16)]
    waiting: list[tuple[int, int, list[tuple[int, int]]]] = []
    started = time.process_time()
    number = 0
    foreign = 0.0
    while (plan := sub.next_plan(max_messages=batch)) is not None:
        start = plan.start
        end = min(start + plan.max_messages, plan.end_limit)
        if plan.consumer_id is None:
            slots = parts[number % 16][: end - start] if type is SubscriptionType.KEY_SHARED else None
            selections = sub.routed(plan, [(start, end)], end, number, slots=slots)
            assert selections is not None
            paused = time.process_time()
            waiting += [(s.consumer_id, s.session, runs(s.indices, start)) for s in selections]
            foreign += time.process_time() - paused
        else:
            assert plan.session is not None
            assert sub.sent(plan, [(start, end)], 0, end, number)
            waiting.append((plan.consumer_id, plan.session, [(start, end)]))
        number += 1
        while len(waiting) > 10:
            consumer_id, session, ranges = waiting.pop(0)
            sub.ack(consumer_id, session, ranges)
        if number % 50 == 0:
            sub.changes(), sub.kept()
    for consumer_id, session, ranges in waiting:
        sub.ack(consumer_id, session, ranges)
    took = time.process_time() - started - foreign
    assert sub.floor == batch * batches
    return took


def runs(indices: Sequence[int], start: int) -> list[tuple[int, int]]:
    """The indices as ranges of offsets: what a client does, and what the wire carries."""
    found: list[tuple[int, int]] = []
    low = high = -1
    for index in indices:
        if index == high:
            high += 1
        else:
            if low >= 0:
                found.append((start + low, start + high))
            low, high = index, index + 1
    found.append((start + low, start + high))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--batches", type=int, default=1000)
    parser.add_argument("--batch", type=int, default=2000)
    parser.add_argument("--runs", type=int, default=3)
    arguments = parser.parse_args()
    batch, batches = arguments.batch, arguments.batches

    def line(name: str, run: Callable[[], float], messages: int) -> None:
        median_s = statistics.median(run() for _ in range(arguments.runs))
        each = median_s / messages * 1e9
        print(f"{name:46} {each:8.1f} ns a message {each * batch / 1000:9.1f} us a batch of {batch}")

    few = max(batches // 10, 1)
    kinds = SubscriptionType
    cases: list[tuple[str, SubscriptionType, int, int, int, bool]] = [
        ("exclusive", kinds.EXCLUSIVE, 1, 1, batches, False),
        ("shared, 4 batch consumers", kinds.SHARED, 4, 1, batches, False),
        ("shared, 4 single consumers (round robin)", kinds.SHARED, 4, 1, few, True),
        ("key-shared, 1000 keys, 1 consumer", kinds.KEY_SHARED, 1, 1000, few, False),
        ("key-shared, 1000 keys, 4 consumers", kinds.KEY_SHARED, 4, 1000, few, False),
    ]
    for name, kind, consumers, keys, count, single in cases:
        line(
            name,
            lambda k=kind, c=consumers, n=keys, b=count, s=single: drain(  # type: ignore[misc]
                k, consumers=c, keys=n, batch=batch, batches=b, single=s
            ),
            batch * count,
        )


if __name__ == "__main__":
    main()
