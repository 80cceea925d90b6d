"""A store outside the data directory outlives it: an older backup or a copy of the directory destroys no object."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pydanube.sync import connect

from tests.support.broker_process import BrokerDied
from tests.support.waiting import wait_until

pytest.importorskip("pyarrow")
# Up to six lives of a broker in a test, each with the imports of its tier: minutes on a busy machine
pytestmark = pytest.mark.timeout(400)

Make = Callable[..., Any]


def settings(store: Path, **more: str) -> dict[str, str]:
    return {"DANUBE_TIER__FLUSH_AGE": "100ms", "DANUBE_TIER__URL": str(store), **more}


def tiered(broker: Any) -> int:
    return int(broker.ask("topics.describe", topic="logs")["tiered_offset"])


def publish(broker: Any, first: int, count: int = 100) -> list[bytes]:
    lines = [b"line %06d" % i for i in range(first, first + count)]
    broker.publish("logs", lines)
    wait_until(lambda: tiered(broker) == first + count)
    return lines


def read(broker: Any) -> list[bytes]:
    with connect(broker.url) as client, client.reader("logs", stop="head") as reader:
        return [message.payload for message in reader]


def objects(store: Path) -> set[str]:
    """Of the topics of the namespace `default`: the audit's and telemetry come by themselves."""
    return {path.name for path in store.glob("*/topics/default/**/*.parquet")}


def test_an_older_backup_is_restored_and_no_newer_object_is_lost(make_broker: Make, tmp_path: Path) -> None:
    store = tmp_path / "store"
    broker = make_broker(environment=settings(store))
    broker.start()
    sent = publish(broker, 0)
    assert broker.stop() == 0
    backup = tmp_path / "backup"
    shutil.copytree(broker.data_dir, backup)
    broker.start()
    sent += publish(broker, 100)
    assert broker.stop() == 0
    newest = objects(store)

    shutil.rmtree(broker.data_dir)
    shutil.copytree(backup, broker.data_dir)
    with pytest.raises(BrokerDied) as refused:
        broker.start()
    assert "STORE_OWNED" in refused.value.log
    assert "DANUBE_TIER__TAKE_OVER=2" in refused.value.log  # how, and the data directory by name
    assert str(broker.data_dir) in refused.value.log
    assert objects(store) == newest

    restored = make_broker(data_dir=broker.data_dir, environment=settings(store, DANUBE_TIER__TAKE_OVER="2"))
    restored.start()
    assert read(restored) == sent  # what the backup does not know was adopted
    restored.ask("objects.collect", topic="logs")
    assert newest <= objects(store)
    sent += publish(restored, 200)  # behind them, not over them
    assert read(restored) == sent
    verified = restored.ask("objects.verify", topic="logs")
    assert [verified[kind] for kind in ("damaged", "missing", "gaps", "duplicates")] == [[], [], [], []]
    restored.kill()
    restored.start()  # the word is spent, and the store is its own
    assert read(restored) == sent
    next(path for path in store.rglob("*.parquet") if path.name.startswith("0" * 17 + "100-")).unlink()
    damaged = restored.command("objects", "verify", "logs", "--json", check=False)
    assert damaged.returncode == 5
    assert len(json.loads(damaged.stdout)["missing"]) == 1


def test_a_copy_of_the_directory_is_refused_by_name_and_the_running_original_keeps_its_objects(
    make_broker: Make, tmp_path: Path
) -> None:
    store = tmp_path / "store"
    original = make_broker(environment=settings(store))
    original.start()
    sent = publish(original, 0)
    copied = tmp_path / "copied"
    shutil.copytree(original.data_dir, copied)
    sent += publish(original, 100)
    there = objects(store)
    copy = make_broker(data_dir=copied, environment=settings(store))
    with pytest.raises(BrokerDied) as refused:
        copy.start()
    assert "STORE_OWNED" in refused.value.log
    assert str(original.data_dir) in refused.value.log
    assert objects(store) == there
    sent += publish(original, 200)
    assert read(original) == sent

    # told that the original is gone, the copy takes the store: the original notices, and writes there no more
    copy = make_broker(data_dir=copied, environment=settings(store, DANUBE_TIER__TAKE_OVER="1"))
    copy.start()
    wait_until(lambda: any(each["code"] == "TIER_STORE_OWNED" for each in original.status()["reasons"]))
    original.command("produce", "logs", "-m", "of the original")
    assert original.status()["ready"]
    assert there <= objects(store)


def test_a_store_that_is_empty_all_of_a_sudden_is_said_and_not_written_to(
    make_broker: Make, tmp_path: Path
) -> None:
    store, away = tmp_path / "store", tmp_path / "away"
    broker = make_broker(environment=settings(store))
    broker.start()
    sent = publish(broker, 0)
    assert broker.stop() == 0
    store.rename(away)  # a volume that is not mounted
    store.mkdir()
    broker.start()
    (reason,) = broker.status()["reasons"]
    assert reason["code"] == "TIER_STORE_EMPTY"
    assert "TAKE_OVER=0" in reason["message"]
    sent.append(b"more")
    broker.command("produce", "logs", "-m", "more")
    assert objects(store) == set()
    shutil.rmtree(store)
    away.rename(store)
    wait_until(lambda: not broker.status()["reasons"])  # by itself
    wait_until(lambda: tiered(broker) == 101)
    assert read(broker) == sent


def test_a_flush_moves_what_is_young_and_small_to_the_cold_tier_now(
    make_broker: Make, tmp_path: Path
) -> None:
    broker = make_broker(environment={"DANUBE_TIER__FLUSH_AGE": "1h"})
    broker.start()
    broker.command("produce", "logs", stdin=b"a\nb\nc\n")
    assert tiered(broker) == 0
    flushed = broker.json_command("objects", "flush", "logs")
    assert (flushed["messages"], flushed["objects"], tiered(broker)) == (3, 1, 3)
    assert broker.json_command("objects", "flush", "logs")["messages"] == 0
