"""Every sample that `danube GROUP VERB --help` prints runs, as it stands there, against a real broker.

The samples of docs/operations.md are the same lines. Names that only a running cluster gives (ids of calls, tokens,
connections) are replaced by real ones. `PREPARED` makes what a sample expects to find, `ANSWERS` are samples that are
refused or report a finding by design, `NOT_RUN` says why a sample has no test here.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pydanube.sync as sync
import pytest
from pydanube_admin.engine.declaration import declarations
from pydanube_cli.operations import command_of
from pydanube_core.errors import CODES

from tests.cli.running import Danube, Ran
from tests.support.broker_process import BrokerProcess

SETTINGS = {"DANUBE_AUTH__MODE": "optional", "DANUBE_TIER__FLUSH_AGE": "1s"}
FILLED = (
    "topics create orders",
    "subscriptions create orders billing --start earliest",
    "messages publish orders --payload 'a refund' --attributes trace=abc",
    "messages publish orders --payload two",
)
REGISTERED = (
    'schemas register orders-value --schema-type json_schema --schema-definition \'{"type": "string"}\''
)
AUDITOR = "roles create auditor --permissions audit:read,topics:read"
CONNECTOR = "connectors create orders-delta --definition 'connector = \"my_sinks:Delta\"'"
LINK = "links create eu --source danube://127.0.0.1:9 --topics '/default/*'"
BINDING = "bindings create ann-orders ann --roles producer,consumer --scope topic --resource '/shop/orders*'"
LETTER = "messages publish orders-dead --payload a --attributes x-original-topic=/default/orders,x-original-subscription=billing"
POISONED = "subscriptions set-failure-policy orders billing --poison-policy dead_letter --dead-letter-topic orders-dead"
PREPARED: dict[str, tuple[str, ...]] = {
    "audit.export": ("namespaces create ops", "topics create /ops/audit"),
    "bindings.delete": (BINDING,),
    **{
        f"connectors.{verb}": (CONNECTOR,)
        for verb in ("delete", "describe", "errors", "offsets", "pause", "restart", "resume", "set")
    },
    **{
        f"connectors.{verb}": (CONNECTOR, "connectors pause orders-delta --yes")
        for verb in ("reset_offsets", "set_offsets")
    },
    **{
        f"links.{verb}": ("links delete eu --yes", LINK)
        for verb in ("delete", "describe", "fail_over", "pause", "resume")
    },
    "dead_letters.list": (POISONED,),
    "dead_letters.replay": (
        "topics create orders-dead",
        POISONED,
        LETTER,
        LETTER,
        LETTER,
    ),
    "messages.peek": ("produce orders -f lines",),
    "namespaces.delete": ("namespaces create shop",),
    "namespaces.set_policies": ("namespaces create shop",),
    "objects.collect": ("objects flush orders",),
    "plans.create": ("topics create test-a", "topics create old-a", "topics create orders"),
    "quotas.set": ("namespaces create shop",),
    "revocations.delete": ("revocations create --kind jti --value 4711 --expires 1d",),
    "roles.delete": (AUDITOR,),
    "schemas.check": (REGISTERED,),
    "schemas.delete_version": (REGISTERED, REGISTERED.replace('"string"', '["string", "null"]')),
    "schemas.get": (REGISTERED,),
    "schemas.get_by_id": (REGISTERED,),
    "schemas.get_compatibility": (REGISTERED,),
    "schemas.set_compatibility": (REGISTERED,),
    "schemas.versions": (REGISTERED,),
    "topics.add_partitions": ("topics delete orders --yes", "topics create orders --partitions 3"),
    "topics.configure_schema": (REGISTERED,),
    "topics.get_schema_config": (REGISTERED, "topics configure-schema orders orders-value"),
    "topics.set_validation_policy": (REGISTERED, "topics configure-schema orders orders-value"),
}
#: gone before each sample of the operation, because the sample makes it
ABSENT: dict[str, tuple[str, ...]] = {
    "namespaces.create": ("namespaces delete shop --yes",),
    "connectors.create": ("connectors delete orders-delta --yes",),
    "links.create": ("links delete eu --yes",),
    "roles.create": ("roles delete auditor --yes",),
    "topics.create": ("topics delete orders --yes",),
    "subscriptions.create": ("subscriptions delete orders billing --yes",),
}
#: begin of a sample → the code of the error that it ends with here
ANSWERS = {
    "brokers remove": "LAST_BROKER",  # several brokers: tests/e2e/test_removed_broker.py
    "brokers unload": "LAST_BROKER",
    "connectors reset-offsets": "CONFLICT",  # it has not run: tests/connect/test_workers.py
    "connectors set-offsets": "CONFLICT",  # the same
    "links fail-over": "INVALID_ARGUMENT",  # nothing is mirrored yet: tests/broker/links
    "links reopen": "INVALID_ARGUMENT",  # nothing was failed over: tests/broker/links
    "cluster rebalance": "LAST_BROKER",  # several brokers: tests/admin/test_load_manager.py
    "topics move": "LAST_BROKER",
    "topics take-over": "LAST_BROKER",  # several brokers: tests/broker/moves/test_take_over_of_topics.py
    "topics unload": "LAST_BROKER",
    "tasks cancel": "CONFLICT",  # the task is done before
}
NOT_RUN = dict.fromkeys(
    ("reports.balance", "reports.lag", "reports.traffic"),
    "needs Spark and a minute of telemetry: tests/admin/test_reports.py",
)


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("broker"), environment=SETTINGS) as process:
        yield process


@pytest.fixture
def shell(
    danube: Danube, broker: BrokerProcess, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Callable[[str], Ran]:
    monkeypatch.setenv("DANUBE_ADMIN_ENDPOINT", broker.admin)
    monkeypatch.setenv("DANUBE_BROKER_URL", broker.url)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "lines").write_text("a line\n" * 50)

    def run(line: str) -> Ran:
        return danube(*shlex.split(line.removeprefix("danube ")))

    for name in ("orders", "orders-again", "orders-dead", "test-a", "old-a"):
        run(f"topics delete {name} --yes")
    for line in FILLED:
        assert (ran := run(line)).code == 0, (line, ran.err)
    return run


def first(broker: BrokerProcess, operation: str, field: str) -> str:
    return str(broker.ask(operation)["items"][0][field])


def real(sample: str, broker: BrokerProcess, shell: Callable[[str], Ran]) -> str:
    """Put what this cluster has in place of the ids of a sample."""
    words = sample.split()
    group = words[1]
    if "10203040506070809" in sample:
        return sample.replace("10203040506070809", first(broker, "brokers.list", "broker_id"))
    match group:
        case "changes" if words[2] == "undo":
            return sample.replace(words[3], shell("topics delete orders --yes --json").result["call_id"])
        case "plans" if words[2] != "create" and len(words) > 3:
            plan = shell("plans create topics.delete --arguments topic=orders --json").result
            return sample.replace(words[3], plan["plan_token" if words[2] == "apply" else "plan_id"])
        case "tasks" if len(words) > 3:
            detached = shell("objects verify orders --detach --json").result
            return sample.replace(words[3], detached["task_id"])
        case "tokens" if "0123456789abcdef" in sample:
            made = shell("tokens create billing --role producer --expires 90d --json").result
            return sample.replace("0123456789abcdef", made["token_id"])
        case "consumers" if words[2] == "disconnect":
            return sample.replace("42", first(broker, "consumers.list", "id"))
        case "producers" if words[2] == "disconnect":
            return sample.replace(words[3], first(broker, "producers.list", "id"))
        case "schemas" if words[2] == "get-by-id":
            return sample.replace("7", str(broker.ask("schemas.get", subject="orders-value")["schema_id"]))
    return sample


@pytest.mark.parametrize("name", [name for name in declarations() if name not in NOT_RUN])
def test_the_samples_run_as_they_stand(name: str, broker: BrokerProcess, shell: Callable[[str], Ran]) -> None:
    declared = declarations()[name]
    with sync.connect(broker.url) as client, client.consumer("orders", "watching"), client.producer("orders"):
        for sample in command_of(declared).examples:
            for line in (*ABSENT.get(name, ()), *PREPARED.get(name, ())):
                shell(line)
            line = real(sample, broker, shell)
            if declared.planned:
                line += " --yes"
            ran = shell(line)
            error = next(
                (code for begin, code in ANSWERS.items() if sample.startswith(f"danube {begin}")), None
            )
            assert ran.code == (0 if error is None else CODES[error].exit), f"{line}\n{ran.out}{ran.err}"
            assert error is None or f"error {error}" in ran.err, ran.err


def test_what_is_listed_exists() -> None:
    lists: list[dict[str, Any]] = [PREPARED, ABSENT, NOT_RUN]
    assert {name for each in lists for name in each} <= set(declarations())
