"""Retention by policy and the deletion of a topic, on a real broker; SIGKILL at each of their steps; three tiers at once."""

from __future__ import annotations

import subprocess
import threading
from pathlib import Path

import pytest

from tests.support.broker_process import BrokerProcess, client_environment, danube_command
from tests.support.waiting import wait_until

pq = pytest.importorskip("pyarrow.parquet")

HOOK = "PYDANUBE_TEST_KILL_AT"
SETTINGS = {
    "DANUBE_TIER__FLUSH_AGE": "100ms",
    "DANUBE_JOURNAL__SEGMENT_BYTES": "256KiB",
    "DANUBE_JOURNAL__TAIL_CACHE_BYTES": "16KiB",
}


def fill(broker: BrokerProcess, topic: str, objects: int) -> None:
    """So many objects of 100 messages each."""
    sent = 0
    for _ in range(objects):
        broker.publish(topic, [b"x" * 100] * 100)
        sent += 100
        wait_until(lambda wanted=sent: broker.ask("topics.describe", topic=topic)["tiered_offset"] == wanted)


def starts(broker: BrokerProcess, topic: str) -> list[int]:
    return [item["start_offset"] for item in broker.ask("objects.list", topic=topic)["items"]]


def files(broker: BrokerProcess, topic: str) -> list[Path]:
    return sorted(broker.data_dir.glob(f"objects/*/topics/default/{topic}/*/*.parquet"))


def test_retention_takes_whole_objects_and_waits_for_cursors(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path, environment=SETTINGS) as broker:
        fill(broker, "logs", 4)
        whole = [0, 100, 200, 300]
        assert starts(broker, "logs") == whole
        broker.ask("subscriptions.create", topic="logs", subscription="slow", start="offset:150")
        broker.ask("topics.set_policies", topic="logs", policies={"retention_bytes": 1})
        wait_until(lambda: starts(broker, "logs") == [100, 200, 300])
        described = broker.ask("topics.describe", topic="logs")
        assert (described["start_offset"], described["next_offset"]) == (100, 400)
        lag = broker.ask("subscriptions.lag", topic="logs", subscription="slow")["items"][0]
        assert lag["lag_messages"] == 250
        sizes = [item["bytes"] for item in broker.ask("objects.list", topic="logs")["items"]]
        assert sum(sizes[1:]) < lag["lag_bytes"] < sum(sizes), "half of the first object is read"
        assert lag["oldest_unread_age_s"] is not None
        broker.ask(
            "topics.set_policies",
            topic="logs",
            policies={"retention_bytes": 0, "retention_offset": 250},
        )
        broker.ask("topics.set_policies", topic="logs", policies={"drop_unread": 1})
        wait_until(lambda: starts(broker, "logs") == [200, 300])
        assert broker.ask("subscriptions.lag", topic="logs")["items"][0]["lag_messages"] == 200
        got = broker.command(
            "consume", "logs", "-s", "slow", "--count", "200", "--for", "60s", "--format", "raw"
        )
        assert len(got.stdout.splitlines()) == 200
        # The namespace decides for a topic that sets nothing.
        broker.ask(
            "topics.set_policies",
            topic="logs",
            policies={"retention_offset": None, "drop_unread": None},
        )
        broker.ask("namespaces.set_policies", namespace="default", policies={"retention_age_s": 1})
        wait_until(lambda: starts(broker, "logs") == [])
        assert broker.ask("topics.describe", topic="logs")["start_offset"] == 400
        tier = broker.status()["tier"]
        assert tier["objects_dropped"] == 4
        assert "tier_gap" not in broker.log()
        broker.command("produce", "logs", "-m", "new")
        assert broker.command("consume", "logs", "--exit", "--format", "raw").stdout == b"new\n"


def test_what_the_journal_is_not_to_keep_is_tiered_first(tmp_path: Path) -> None:
    settings = {
        **SETTINGS,
        "DANUBE_TIER__FLUSH_AGE": "1h",
        "DANUBE_JOURNAL__RETENTION_BYTES": "300KiB",
    }
    with BrokerProcess(tmp_path, environment=settings) as broker:
        broker.command("produce", "logs", "-m", "x" * 1000, "--count", "3000")
        wait_until(lambda: bool(broker.ask("topics.describe", topic="logs")["tiered_offset"]))
        described = broker.ask("topics.describe", topic="logs")
        assert (described["start_offset"], described["next_offset"]) == (0, 3000)
        wait_until(lambda: broker.status()["journal"]["segments"] <= 4)
        assert len(broker.command("consume", "logs", "--exit", "--format", "raw").stdout.splitlines()) == 3000


def test_a_deleted_topic_takes_its_objects_with_it_also_when_killed_half_way(tmp_path: Path) -> None:
    hooks = tmp_path / "hooks"
    hooks.mkdir()
    with BrokerProcess(
        tmp_path, environment={**SETTINGS, HOOK: str(hooks), "DANUBE_ADMIN__UNDO_GRACE": "100ms"}
    ) as broker:
        fill(broker, "logs", 2)
        fill(broker, "logs-eu", 1)
        assert len(files(broker, "logs")) == 2
        (hooks / "discarded").touch()
        broker.command("topics", "delete", "logs", "--yes")
        wait_until(lambda: not broker.running)
        broker.kill()
        broker.start()
        wait_until(lambda: "tier_topic_discarded" in broker.log())
        assert files(broker, "logs") == []
        assert len(files(broker, "logs-eu")) == 1, "a neighbour by name keeps its own"
        broker.command("produce", "logs", "-m", "again")
        assert broker.command("consume", "logs", "--exit", "--format", "raw").stdout == b"again\n"
        assert starts(broker, "logs-eu") == [0]


@pytest.mark.long
def test_retention_killed_at_every_step_leaves_what_it_must_keep(tmp_path: Path) -> None:
    hooks = tmp_path / "hooks"
    hooks.mkdir()
    with BrokerProcess(tmp_path, environment={**SETTINGS, HOOK: str(hooks)}) as broker:
        fill(broker, "logs", 4)
        for number, step in enumerate(("dropped", "retained", "deleted", "forgotten"), start=1):
            (hooks / step).touch()
            if step in ("dropped", "retained"):
                body = {"retention_offset": 100 * number}
                broker.ask("topics.set_policies", topic="logs", policies=body)
            else:  # the third is the child's own death, which its broker outlives
                broker.command("objects", "collect", "logs", "--yes", check=False)
            wait_until(lambda: not any(hooks.iterdir()))
            if step != "deleted":
                wait_until(lambda: not broker.running)
                broker.kill()
                broker.start()
            begin = 100 * min(number, 2)
            wait_until(lambda begin=begin: starts(broker, "logs") == list(range(begin, 400, 100)))
            described = broker.ask("topics.describe", topic="logs")
            assert (described["start_offset"], described["next_offset"]) == (begin, 400)
        broker.command("objects", "collect", "logs", "--yes")
        assert len(files(broker, "logs")) == 2
        found = broker.ask("objects.verify", topic="logs")
        assert [found[kind] for kind in ("damaged", "missing", "gaps", "duplicates")] == [[], [], [], []]
        got = broker.command("consume", "logs", "--exit", "--json").stdout.splitlines()
        assert len(got) == 200


def test_a_consumer_from_offset_0_crosses_three_tiers_while_publishing_goes_on(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path, environment=SETTINGS) as broker:

        def lines(start: int, end: int) -> bytes:
            return b"".join(b"%06d %s\n" % (i, b"x" * 200) for i in range(start, end))

        first = lines(0, 20_000)
        broker.command("produce", "logs", stdin=first)
        wait_until(lambda: broker.ask("topics.describe", topic="logs")["tiered_offset"] == 20_000)
        # The rest comes while the consumer reads, and is tiered under its feet.
        more = [lines(at, at + 2000) for at in range(20_000, 30_000, 2000)]
        publishing = threading.Thread(
            target=lambda: [broker.command("produce", "logs", stdin=part) for part in more]
        )
        publishing.start()
        consumer = subprocess.run(
            [
                *danube_command(), "consume", "logs", "-s", "all", "--count", "30000", "--for", "90s", "--format",
                "raw", *broker.client_arguments(),
            ],
            capture_output=True,
            env=client_environment(),
            timeout=180,
            check=False,
        )  # fmt: skip
        publishing.join()
        assert consumer.returncode == 0, consumer.stderr.decode()
        assert consumer.stdout == first + b"".join(more), "every offset once, in order"
        assert broker.status()["tier"]["cold_reads"] > 0
