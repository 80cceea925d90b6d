"""Workers of a group, as processes: they share declared connectors, and take over those of a worker that is killed."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from deltalake.exceptions import TableNotFoundError

from tests.connect.servers import MISSING, Postgres
from tests.connect.targets import HttpTarget
from tests.support.broker_process import BrokerProcess, client_environment
from tests.support.waiting import wait_until
from tests.support.warm_commands import start_danube

pytestmark = pytest.mark.timeout(400)
CONNECTORS = 4
#: seconds from SIGKILL of a worker to its connectors at work elsewhere. Some reports, and a loaded machine
WITHIN_S = 30.0


class Worker:
    """`danube connect worker`."""

    def __init__(self, broker: BrokerProcess, folder: Path, name: str, *more: str) -> None:
        self.name = name
        self._log = (folder / f"{name}.log").open("ab")
        words = ["connect", "worker", "--name", name, *more, "--broker", broker.url, "--admin", broker.admin]
        environment = client_environment({"PYDANUBE_TEST_PATH": "hooks"})
        self.process = start_danube(words, environment=environment, output=self._log)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(30)

    def stop(self) -> int:
        self.process.terminate()
        return self.process.wait(60)

    def close(self) -> None:
        if self.process.poll() is None:
            self.kill()
        self._log.close()


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path / "broker") as found:
        yield found


@pytest.fixture
def workers() -> Iterator[contextlib.ExitStack]:
    with contextlib.ExitStack() as stack:
        yield stack


@pytest.fixture
def postgres() -> Iterator[Postgres]:
    if MISSING is not None:
        pytest.skip(MISSING)
    with Postgres() as found:
        yield found


def start(stack: contextlib.ExitStack, broker: BrokerProcess, folder: Path, name: str, *more: str) -> Worker:
    worker = Worker(broker, folder, name, *more)
    stack.callback(worker.close)
    return worker


def definition(target: HttpTarget, topic: str) -> str:
    return (
        f'connector = "http-sink"\ntopic = "{topic}"\n[settings]\nurl = "{target.url}/${{env:PYDANUBE_TEST_PATH}}/{{n}}"\n'
        '[delivery]\nbatch_age = "50ms"\nbackoff_s = 0.05\nretries = 2\n'
    )


def items(broker: BrokerProcess) -> dict[str, dict[str, Any]]:
    return {item["connector"]: item for item in broker.ask("connectors.list", limit=100)["items"]}


def by_worker(broker: BrokerProcess) -> dict[str, int]:
    """Return how many connectors run at each worker."""
    found: dict[str, int] = {}
    for item in items(broker).values():
        if item["state"] == "running":
            found[item["worker"]] = found.get(item["worker"], 0) + 1
    return found


def publish(broker: BrokerProcess, topic: str, numbers: range) -> None:
    broker.publish(topic, [json.dumps({"n": n}).encode() for n in numbers])


def paths(target: HttpTarget) -> set[str]:
    return {asked.path for asked in target.asked}


def arrived(target: HttpTarget, of: range) -> bool:
    return {f"/hooks/{n}" for n in of} <= paths(target)


def other_runs(broker: BrokerProcess, target: HttpTarget, name: str) -> None:
    """Declare another connector, and return when it has delivered: the worker has seen all that was declared before."""
    broker.command("topics", "create", name)
    broker.command("connectors", "create", name, "--definition", definition(target, name))
    broker.publish(name, [json.dumps({"n": name}).encode()])
    wait_until(lambda: f"/hooks/{name}" in paths(target))
    broker.command("connectors", "delete", name, "--yes", check=False)


def test_workers_share_connectors_and_take_over_those_of_a_killed_one(
    broker: BrokerProcess, target: HttpTarget, tmp_path: Path, workers: contextlib.ExitStack
) -> None:
    file = tmp_path / "sink.toml"
    for n in range(CONNECTORS):
        broker.command("topics", "create", f"t{n}")
        file.write_text(definition(target, f"t{n}"))
        broker.command("connectors", "create", f"sink{n}", "--file", str(file))
    assert {item["state"] for item in items(broker).values()} == {"stopped"}
    assert "connect worker --group default" in items(broker)["sink0"]["worker_reason"]
    first = start(workers, broker, tmp_path, "first")
    wait_until(lambda: by_worker(broker) == {"first": CONNECTORS})
    second = start(workers, broker, tmp_path, "second")
    other = start(workers, broker, tmp_path, "other", "--group", "other")
    wait_until(lambda: by_worker(broker) == {"first": 2, "second": 2})
    for n in range(CONNECTORS):
        publish(broker, f"t{n}", range(n * 100, n * 100 + 50))
    wait_until(lambda: all(arrived(target, range(n * 100, n * 100 + 50)) for n in range(CONNECTORS)))
    item = broker.ask("connectors.describe", connector="sink0")
    assert (item["kind"], item["type"], item["guarantee"]) == ("sink", "http-sink", "idempotent")
    assert "${env:PYDANUBE_TEST_PATH}" in item["definition"]

    first.kill()
    killed_at = time.monotonic()
    for n in range(CONNECTORS):
        publish(broker, f"t{n}", range(n * 100 + 50, n * 100 + 100))
    wait_until(lambda: all(arrived(target, range(n * 100, n * 100 + 100)) for n in range(CONNECTORS)))
    took_s = time.monotonic() - killed_at
    print(f"elsewhere after {took_s:.1f} s")
    assert took_s < WITHIN_S
    wait_until(lambda: by_worker(broker) == {"second": CONNECTORS})
    assert broker.ask("connectors.offsets", connector="sink1")["items"] == [
        {"place": "/default/t1", "position": "100", "lag_messages": 0}
    ]
    assert other.stop() == 0
    assert second.stop() == 0
    wait_until(lambda: by_worker(broker) == {})


def test_what_is_declared_is_what_runs(
    broker: BrokerProcess, target: HttpTarget, tmp_path: Path, workers: contextlib.ExitStack
) -> None:
    broker.command("topics", "create", "t")
    text = definition(target, "t")
    broker.command("connectors", "create", "sink", "--definition", text)
    worker = start(workers, broker, tmp_path, "w")
    wait_until(lambda: items(broker)["sink"]["state"] == "running")

    broker.command("connectors", "pause", "sink")
    wait_until(lambda: items(broker)["sink"]["worker"] is None)
    publish(broker, "t", range(10))
    other_runs(broker, target, "while_paused")
    assert paths(target) == {"/hooks/while_paused"}, "none of the paused connector"
    assert items(broker)["sink"]["state"] == "paused"
    broker.command("connectors", "resume", "sink")
    wait_until(lambda: arrived(target, range(10)))

    missing = text.replace("PYDANUBE_TEST_PATH", "NOT_THERE")
    broker.command("connectors", "set", "sink", "--definition", missing)
    wait_until(lambda: "the environment has no NOT_THERE" in (items(broker)["sink"]["last_error"] or ""))
    assert items(broker)["sink"]["state"] == "stopped"
    done = broker.json_command("connectors", "set", "sink", "--definition", text)
    wait_until(lambda: items(broker)["sink"]["state"] == "running")
    publish(broker, "t", range(10, 20))
    wait_until(lambda: arrived(target, range(20)))

    broker.publish("t", [b"no json"])  # refused, so that the connector stops
    wait_until(
        lambda: (
            items(broker)["sink"]["state"] == "stopped" and "sink" in str(items(broker)["sink"]["last_error"])
        )
    )
    broker.command(
        "connectors",
        "set",
        "sink",
        "--definition",
        text.replace("[delivery]", '[delivery]\non_error = "dead_letter"'),
    )
    wait_until(lambda: len(broker.ask("connectors.errors", connector="sink")["refused"]) == 1)
    errors = broker.ask("connectors.errors", connector="sink")
    assert errors["dead_letter_topics"] == ["/default/t-dlq-connect-sink"]
    assert errors["refused"][0]["untrusted"]["text"] == "no json"
    shown = broker.command("connectors", "errors", "sink").stdout.decode()
    assert "REASON" in shown.upper()
    assert "the payload is no JSON" in shown
    assert done["undo_until"] is not None

    assert broker.command("connectors", "delete", "sink", "--yes", check=False).returncode == 0
    assert items(broker) == {}
    wait_until(lambda: broker.ask("consumers.list", topic="t")["items"] == [])
    before = paths(target)
    publish(broker, "t", range(30, 40))
    other_runs(broker, target, "after_deletion")
    assert paths(target) - before == {"/hooks/after_deletion"}, "none of the deleted connector"
    assert worker.stop() == 0


def test_logs_are_reported_and_offsets_are_reset(
    broker: BrokerProcess, tmp_path: Path, workers: contextlib.ExitStack
) -> None:
    broker.command("topics", "create", "t")
    publish(broker, "t", range(10))
    sink = f'connector = "delta-sink"\ntopic = "t"\n[settings]\ntable = "{tmp_path}/table"\n'
    broker.command("connectors", "create", "sink", "--definition", sink)
    source = 'connector = "tests.connect.own:SlowLines"\ntopic = "lines"\n'
    broker.command("connectors", "create", "lines", "--definition", source)
    worker = start(workers, broker, tmp_path, "w")

    def rows() -> int:
        with contextlib.suppress(TableNotFoundError):
            return len(DeltaTable(str(tmp_path / "table")).to_pyarrow_table())
        return 0

    def position(connector: str) -> list[str]:
        return [each["position"] for each in broker.ask("connectors.offsets", connector=connector)["items"]]

    def published() -> int:
        return int(broker.ask("topics.describe", topic="lines")["messages"])

    wait_until(lambda: rows() == 10 and position("lines") == ["100"])
    # A first report that came after the pause would count as a connector that runs.
    wait_until(lambda: {item["worker"] for item in items(broker).values()} == {"w"})
    for name in ("sink", "lines"):
        broker.command("connectors", "pause", name)
    wait_until(lambda: {item["worker"] for item in items(broker).values()} == {None})
    broker.command("connectors", "reset-offsets", "sink", "--yes")
    (shard,) = broker.ask("connectors.offsets", connector="lines")["items"]
    broker.command(
        "connectors", "set-offsets", "lines", "--place", shard["place"], "--position", "40", "--yes"
    )
    for name in ("sink", "lines"):
        broker.command("connectors", "resume", name)
    wait_until(lambda: rows() == 20)
    wait_until(lambda: published() == 160)
    publish(broker, "t", range(10, 15))
    wait_until(lambda: rows() == 25)
    said = broker.ask("connectors.logs", connector="sink")["items"]
    assert [item["untrusted"]["text"].split()[2] for item in said[:2]] == [
        "connector_started",
        "connector_ended",
    ]
    assert {item["worker"] for item in said} == {"w"}
    assert b"connector_started" in broker.command("connectors", "logs", "sink").stdout
    assert worker.stop() == 0


def test_parts_of_a_sink_are_shared_and_taken_over_exactly_once(
    broker: BrokerProcess, postgres: Postgres, tmp_path: Path, workers: contextlib.ExitStack
) -> None:
    broker.command("topics", "create", "t", "--partitions", "4")
    text = (
        f'connector = "postgres-sink"\ntopic = "t"\n[settings]\ndsn = "{postgres.dsn}"\ntable = "rows"\n'
        '[delivery]\nworkers = 4\nbatch_age = "50ms"\nbackoff_s = 0.05\n'
    )
    broker.command("connectors", "create", "sink", "--definition", text)
    first = start(workers, broker, tmp_path, "first")
    start(workers, broker, tmp_path, "second")

    def leases() -> list[str]:
        """Return the worker of each part."""
        found = broker.ask("consumers.list", topic="connect-leases", limit=100)["items"]
        return sorted(each["consumer"] for each in found if each["active"])

    def rows() -> list[int]:
        return [n for (n,) in postgres.sql("SELECT n FROM rows ORDER BY n")]

    wait_until(lambda: items(broker)["sink"]["worker"] == "first, second")
    wait_until(lambda: leases() == ["first", "first", "second", "second"])
    for n in range(0, 1_000, 125):  # each call fills one partition
        publish(broker, "t", range(n, n + 125))
    wait_until(lambda: bool(postgres.sql("SELECT to_regclass('rows')")[0][0]) and len(rows()) == 1_000)
    first.kill()
    for n in range(1_000, 3_000, 250):
        publish(broker, "t", range(n, n + 250))
    wait_until(lambda: len(rows()) >= 3_000)
    assert rows() == list(range(3_000))
    # The places are those of the whole topic, as without parts
    positions = postgres.sql(
        "SELECT topic, sum(next_offset), min(partition) >= 0 FROM danube_positions GROUP BY 1"
    )
    assert positions == [("/default/t", 3_000, True)]
    wait_until(lambda: leases() == ["second"] * 4)
    wait_until(lambda: items(broker)["sink"]["worker"] == "second")
