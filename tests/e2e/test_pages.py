"""The pages of the documentation: each fenced block is run by a test, here or elsewhere, or stands here with the reason why not.

Blocks of shell are run line by line in a folder of their own, as they stand there, against a broker of their own: `./danube`
is the command, the usual ports are the broker's, and the log file of the samples is one that is made for it.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.broker_process import BrokerProcess, client_environment
from tests.support.pages import FENCE, ROOT
from tests.support.warm_commands import put_commands

pytestmark = pytest.mark.timeout(400)

ON_THE_SITE = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    *sorted((ROOT / "docs").glob("*.md")),
    *sorted((ROOT / "deploy").rglob("*.md")),
]
#: page → how the blocks begin that are run here, in this order
RUN = {
    "README.md": ["./danube produce logs -f", "./danube mcp --print-config", "import asyncio"],
    "docs/quickstart.md": [
        "curl -fs --retry",
        "./danube produce logs -f",
        "./danube consume logs -s billing",
        "./danube topics list",
        "curl -s localhost:8765/rpc",
        "./danube produce 'bad name!'",
        "./danube config init",
    ],
    "docs/cold-tier.md": [
        "./danube objects list logs --format paths",
        "./danube objects export logs",
        "./danube topics set-policies logs",
    ],
    "docs/administration.md": ["danube audit query --topic orders"],
}
#: (page, how the block begins; "" for all others of the page) → the test that runs it, or why nothing can
ELSEWHERE = {
    ("README.md", " Python SDK"): "a drawing",
    ("README.md", "make run"): "tests/e2e/test_walk_road.py",
    ("README.md", "kill -9"): "tests/e2e/test_walk_road.py",
    ("docs/quickstart.md", "make run"): "tests/e2e/test_walk_road.py",
    ("docs/quickstart.md", "kill -9"): "tests/e2e/test_walk_road.py",
    ("docs/quickstart.md", "./danube bench"): "tests/cli/test_bench_live.py",
    ("docs/cold-tier.md", "[tier]"): "tests/e2e/test_walk_tier.py",
    ("docs/cold-tier.md", "duckdb -c"): "tests/e2e/test_walk_tier.py",
    ("docs/cold-tier.md", "import subprocess, duckdb"): "tests/e2e/test_walk_tier.py",
    ("docs/cold-tier.md", "import pandas"): "tests/e2e/test_walk_tier.py",
    ("docs/cold-tier.md", "import polars"): "tests/e2e/test_walk_tier.py",
    ("docs/cold-tier.md", "from pyspark"): "tests/e2e/test_walk_tier.py",
    ("docs/operating.md", "podman run"): "tests/deploy/test_containers.py",
    (
        "docs/operating.md",
        "docker compose",
    ): "its second line is a test by itself; tests/deploy needs no Docker",
    (
        "docs/operating.md",
        "podman tag",
    ): "needs a registry and a Kubernetes; tests/deploy/test_chart.py renders the chart",
    ("docs/operating.md", "make env-dev"): "tests/deploy/test_packages.py",
    (
        "docs/upgrading.md",
        "systemctl",
    ): "needs a machine with systemd; tests/deploy/test_systemd.py judges the unit",
    (
        "deploy/systemd/README.md",
        "",
    ): "needs a machine with systemd; tests/deploy/test_systemd.py judges the unit",
    ("deploy/helm/danube/README.md", ""): "needs a Kubernetes; tests/deploy/test_chart.py renders the chart",
    ("docs/backup.md", "kill -TERM"): "tests/e2e/test_tier_backups_and_copies.py",
    ("docs/backup.md", "rm -rf"): "tests/e2e/test_tier_backups_and_copies.py",
    ("docs/backup.md", "DANUBE_TIER__TAKE_OVER"): "tests/e2e/test_tier_backups_and_copies.py",
    ("docs/administration.md", ""): "tests/mcp/test_conversations_page.py",
    ("docs/administration.md", "danube topics delete"): "tests/cli/test_operation_commands.py",
    ("docs/ai-administration.md", ""): "tests/mcp/test_conversations_page.py",
    ("docs/reference.md", ""): "made from the code, drift is checked",
    ("docs/console.md", ""): "made from the code, drift is checked",
    ("docs/ai-clients.md", ""): "made from the code, drift is checked; its programs cannot be had here",
    ("docs/links.md", ""): "two clusters: tests/broker/links/test_mirrors.py",
    ("docs/connect.md", ""): "tests/connect/test_connect_page.py",
    ("docs/connect.md", "danube connect"): "tests/connect/test_scaffold_and_commands.py",
    ("docs/connect.md", "class MyTarget"): "tests/connect/test_scaffold_and_commands.py",
    ("docs/cluster.md", ""): "tests/e2e/test_cluster_page.py",
    ("docs/cluster-metadata.md", ""): "tests/e2e/test_cluster_page.py",
    ("docs/console.md", "danube tui"): "tests/tui/test_serving.py",
    ("docs/data-formats.md", ""): "tests/core/test_data_formats_page.py",
    ("docs/delivery.md", ""): "tests/e2e/test_delivery_to_killed_consumers.py",
    ("docs/operating.md", ""): "tests/cli/test_config_doctor_and_start.py",
    ("docs/design.md", ""): "tests/house/test_design_page.py",
    ("docs/interface.md", ""): "tests/e2e/test_walk_road.py",
    (
        "docs/operations.md",
        "",
    ): "made from the declared operations; tests/house/test_documents.py asks each command for its flags",
    ("docs/javascript.md", ""): "tests/javascript/test_package.py",
    ("docs/python.md", ""): "tests/client/test_python_guide.py",
    ("docs/security.md", ""): "tests/cli/test_locks_live.py",
    ("docs/spark.md", ""): "tests/spark/test_docs_examples.py",
    ("docs/style.md", ""): "samples of how code looks",
}
LINES = 3000  # of the log that is published


def blocks(page: Path) -> list[tuple[str, str]]:
    """Return (language, text) of each fenced block of a page."""
    return [(language, text) for language, text in FENCE.findall(page.read_text(encoding="utf-8"))]


def elsewhere(page: str, text: str) -> str | None:
    found = [
        reason
        for (name, begins), reason in ELSEWHERE.items()
        if name == page and begins and text.startswith(begins)
    ]
    return (found or [ELSEWHERE.get((page, ""))])[0]


def test_each_block_of_the_site_is_run_or_says_why_not() -> None:
    unknown, used = [], set()
    for page in ON_THE_SITE:
        name = str(page.relative_to(ROOT))
        for _, text in blocks(page):
            here = [begins for begins in RUN.get(name, ()) if text.startswith(begins)]
            used.update((name, begins) for begins in here)
            if not here and elsewhere(name, text) is None:
                unknown.append((name, text.partition("\n")[0]))
    assert unknown == []
    assert used == {(page, begins) for page, all_of in RUN.items() for begins in all_of}
    for reason in ELSEWHERE.values():
        for test in re.findall(r"tests/\S+\.py", reason):
            assert (ROOT / test).is_file(), test


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[tuple[Path, BrokerProcess]]:
    """A folder with `./danube` and a log, and a broker whose data lie in it."""
    if shutil.which("jq") is None or shutil.which("curl") is None:
        pytest.skip("the samples want jq and curl: apt-get install jq curl")
    put_commands(tmp_path)
    (tmp_path / "dpkg.log").write_text("".join(f"status installed lib{number}\n" for number in range(LINES)))
    # The operator's socket is there when locks are; in this mode nobody is refused
    locks = {"DANUBE_AUTH__MODE": "optional"}
    with BrokerProcess(tmp_path / "broker", data_dir=tmp_path / "danube-data", environment=locks) as broker:
        yield tmp_path, broker


def as_here(text: str, broker: BrokerProcess) -> str:
    for usual, ours in (("localhost:9040", broker.info["metrics"]), ("localhost:8765", broker.info["http"])):
        text = text.replace(usual, re.sub(r"^https?://|/.*$", "", ours.removeprefix("http://")))
    return text.replace("/var/log/dpkg.log", "dpkg.log").replace("/var/log/danube-audit", "$PWD/danube-audit")


def run(words: list[str], folder: Path, broker: BrokerProcess) -> subprocess.CompletedProcess[str]:
    ports = {
        f"DANUBE_SERVER__{name.upper()}_PORT": broker.info[key].rpartition(":")[2].partition("/")[0]
        for name, key in (("grpc", "grpc"), ("admin", "admin"), ("metrics", "metrics"), ("http", "http"))
    }
    environment = client_environment(
        {"DANUBE_BROKER_URL": broker.info["grpc"], "DANUBE_ADMIN_ENDPOINT": broker.info["admin"], **ports}
    )
    environment["PATH"] = f"{folder}:{environment['PATH']}"
    return subprocess.run(
        words, cwd=folder, env=environment, capture_output=True, text=True, timeout=120, check=False,
        stdin=subprocess.DEVNULL,
    )  # fmt: skip


@pytest.mark.parametrize("page", RUN)
def test_the_samples_of_the_page_run(page: str, desk: tuple[Path, BrokerProcess]) -> None:
    folder, broker = desk
    if page == "docs/cold-tier.md":
        broker.command("produce", "logs", "-f", str(folder / "dpkg.log"))
    found, last = blocks(ROOT / page), ""
    for begins in RUN[page]:
        ((language, text),) = [each for each in found if each[1].startswith(begins)]
        if language == "python":
            done = run([sys.executable, "-c", text], folder, broker)
            assert done.returncode == 0, done.stderr
            continue
        for line in as_here(text.replace("\\\n", " "), broker).splitlines():
            done = run(["bash", "-o", "pipefail", "-c", line.replace("CALL_ID", last)], folder, broker)
            wanted = re.search(r"# (\d), ([A-Z_]+)", line)
            assert done.returncode == (int(wanted[1]) if wanted else 0), f"{line}\n{done.stdout}{done.stderr}"
            assert wanted is None or wanted[2] in done.stderr, done.stderr
            last = done.stdout.strip().strip('"')
