"""Every program of examples/ does what its first lines say, as a user starts it, against a broker."""

from __future__ import annotations

import ast
import contextlib
import inspect
import io
import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import anyio
import anyio.lowlevel
import pytest

from tests.support.broker_process import BrokerProcess, client_environment
from tests.support.waiting import wait_until

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples"
LINES = 40
#: program → the test that runs it, where that is not one of this file
ELSEWHERE = {
    "spark_job.py": "tests/spark/test_docs_examples.py",
    "javascript/worker.mjs": "tests/javascript/test_package.py",
}


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("broker")) as started:
        yield started


@pytest.fixture
def environment(broker: BrokerProcess) -> dict[str, str]:
    addresses = {"DANUBE_BROKER_URL": broker.url, "DANUBE_ADMIN_ENDPOINT": broker.admin}
    programs = {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "PYTHONPATH": str(EXAMPLES)}
    return client_environment({**addresses, **programs})


def run(words: list[str], environment: dict[str, str], folder: Path, *, timeout_s: float = 100) -> str:
    done = subprocess.run(
        words, env=environment, cwd=folder, capture_output=True, text=True, timeout=timeout_s, check=False,
        stdin=subprocess.DEVNULL,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def example(name: str, *arguments: str) -> list[str]:
    return [sys.executable, str(EXAMPLES / name), *arguments]


@contextlib.contextmanager
def started(words: list[str], environment: dict[str, str], output: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A program that runs until it is told to end, which it does with status 0."""
    with output.open("wb") as file:
        process = subprocess.Popen(words, env=environment, stdout=file, stderr=subprocess.STDOUT)
    try:
        yield process
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0, output.read_text()
    finally:
        process.kill()
        process.wait()


def payloads(broker: BrokerProcess, topic: str) -> list[str]:
    return broker.command("consume", topic, "--exit").stdout.decode().splitlines()


def test_each_program_is_short_and_has_a_test() -> None:
    programs = {
        str(path.relative_to(EXAMPLES)): path
        for path in EXAMPLES.rglob("*.*")
        if path.suffix in (".py", ".go", ".mjs", ".toml") and "__pycache__" not in path.parts
    }
    text = Path(__file__).read_text()
    assert [
        name
        for name in programs
        if name not in ELSEWHERE and Path(name).name not in text.partition("def payloads")[2]
    ] == []
    assert {
        name: count
        for name, path in programs.items()
        if (count := len(path.read_text().splitlines())) > LINES and name not in ELSEWHERE
    } == {}
    for name, test in ELSEWHERE.items():
        assert Path(name).name in (ROOT / test).read_text(), (name, test)


def test_the_worker_bills_orders_and_sets_aside_what_it_refuses(
    broker: BrokerProcess, environment: dict[str, str], tmp_path: Path
) -> None:
    with started(example("worker.py"), environment, tmp_path / "output"):
        wait_until(lambda: broker.ask("subscriptions.list", filter="billing*")["total"] == 1)
        for order in ({"id": 1, "total": 5}, {"id": 2, "total": -5}, {"id": 3, "total": 20}):
            broker.command("produce", "orders", "-m", json.dumps(order), "--key", "customer-7")
        wait_until(lambda: "order 3: 20" in (tmp_path / "output").read_text())
        wait_until(lambda: len(payloads(broker, "bills")) == 2)
        wait_until(lambda: broker.ask("dead_letters.list", topic="orders", subscription="billing")["items"])
    assert [json.loads(bill)["due"] for bill in payloads(broker, "bills")] == [5, 20]


def test_the_web_application_answers_when_the_order_is_stored(
    environment: dict[str, str], tmp_path: Path
) -> None:
    pytest.importorskip("fastapi")
    program = (
        "from starlette.testclient import TestClient; from web_application import app\n"
        "with TestClient(app) as browser:\n"
        "    answer = browser.post('/orders', content=b'one')\n"
        "    print(answer.status_code, list(answer.json()), browser.get('/health').json())\n"
    )  # of web_application.py
    printed = run([sys.executable, "-c", program], environment, tmp_path)
    assert printed == "201 ['offset'] {'ok': True}\n"


def test_a_request_gets_its_reply(broker: BrokerProcess, environment: dict[str, str], tmp_path: Path) -> None:
    with started(example("request_reply.py", "serve"), environment, tmp_path / "output"):
        wait_until(lambda: broker.ask("subscriptions.list", filter="price-list*")["total"] == 1)
        assert run(example("request_reply.py", "ask", "tea"), environment, tmp_path) == "12.50\n"
        assert run(example("request_reply.py", "ask", "wine"), environment, tmp_path) == "unknown\n"


def test_the_outbox_publishes_what_a_crash_left(
    broker: BrokerProcess, environment: dict[str, str], tmp_path: Path
) -> None:
    nobody = {**environment, **client_environment()}
    with pytest.raises(subprocess.TimeoutExpired):  # the broker is down; the order is placed all the same
        subprocess.run(
            example("outbox.py", "shop.db", "9.50"), env=nobody, cwd=tmp_path, timeout=5, check=False
        )
    assert run(example("outbox.py", "shop.db", "20.00"), environment, tmp_path) == "2 published\n"
    assert [json.loads(event)["total"] for event in payloads(broker, "orders-placed")] == ["9.50", "20.00"]


async def test_the_cells_of_the_notebook_run(broker: BrokerProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DANUBE_BROKER_URL", broker.url)
    names: dict[str, object] = {}
    printed = io.StringIO()
    for cell in (EXAMPLES / "notebook.py").read_text().split("# %%"):
        code = compile(f"#{cell}", "cell", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
        with contextlib.redirect_stdout(printed):
            if inspect.isawaitable(outcome := eval(code, names)):
                await outcome
    assert printed.getvalue().count("customer-") == 3
    await anyio.lowlevel.checkpoint()


def test_the_connector_keeps_the_newest_value_of_each_key(
    broker: BrokerProcess, environment: dict[str, str], tmp_path: Path
) -> None:
    for name in ("connector.py", "connector.toml"):
        shutil.copy(EXAMPLES / name, tmp_path)
    for left in (3, 2):
        broker.command("produce", "stock", "-m", json.dumps({"left": left}), "--key", "tea")
    run(["danube", "connect", "run", "connector.toml", "--once"], environment | {"PYTHONPATH": "."}, tmp_path)
    with contextlib.closing(sqlite3.connect(tmp_path / "newest.db")) as database:
        assert database.execute("SELECT * FROM newest").fetchall() == [("tea", b'{"left":2}')]


def test_the_script_of_an_assistant_deletes_a_topic_and_takes_it_back(
    broker: BrokerProcess, environment: dict[str, str], tmp_path: Path
) -> None:
    broker.command("produce", "for-mcp", "-m", "one")
    printed = run(example("mcp_script.py", "for-mcp"), environment, tmp_path)
    assert "'messages': 1" in printed
    assert printed.endswith("back: /default/for-mcp\n")
    assert payloads(broker, "for-mcp") == ["one"]


def test_the_tests_of_the_worker_pass(environment: dict[str, str], tmp_path: Path) -> None:
    shutil.copy(EXAMPLES / "worker.py", tmp_path)
    shutil.copy(EXAMPLES / "test_worker.py", tmp_path)
    words = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_worker.py"]
    assert "2 passed" in run(words, environment | {"PYTHONPATH": "."}, tmp_path)


@pytest.mark.long  # it compiles Go's standard library: 45 s of two cores
@pytest.mark.timeout(400)
@pytest.mark.skipif(shutil.which("go") is None, reason="Go is not installed")
def test_the_program_in_go_publishes_and_reads(
    broker: BrokerProcess, environment: dict[str, str], tmp_path: Path
) -> None:
    broker.command("topics", "create", "from-go")
    environment |= {"GOCACHE": str(tmp_path), "GOFLAGS": "-mod=mod"}
    printed = run(
        ["go", "run", str(EXAMPLES / "go" / "main.go"), broker.http.removesuffix("/mcp") + "/rpc"],
        environment,
        tmp_path,
        timeout_s=350,  # it compiles the standard library first
    )
    assert printed.startswith("stored at offset 0\n")
    assert "text:hello" in printed
