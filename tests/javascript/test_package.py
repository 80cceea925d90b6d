"""The npm package: its own tests, its types, what it consists of, and its pages in an empty project."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.javascript.conftest import NEWEST, OLDEST, from_registry, node_of, run
from tests.support.broker_process import BrokerProcess
from tests.support.pages import FENCE, ROOT

pytestmark = pytest.mark.timeout(900)
PAGES = ["clients/javascript/README.md", "docs/javascript.md"]


def test_its_own_tests_pass(client: Path) -> None:
    run(["npm", "test"], client, timeout_s=800)


@pytest.mark.long
@pytest.mark.parametrize("version", [OLDEST, NEWEST])
def test_its_own_tests_pass_on_the_oldest_and_the_newest_node(client: Path, version: str) -> None:
    tests = [str(path) for path in sorted((client / "test").glob("*.test.mjs"))]
    run([node_of(version), "--test", *tests], client, timeout_s=800)


@pytest.mark.long
@pytest.mark.parametrize("version", [OLDEST, NEWEST])
@pytest.mark.parametrize("name", ["reliable", "partitions", "schemas"])
def test_scenarios_pass_on_the_oldest_and_the_newest_node(
    client: Path, broker: BrokerProcess, topic: str, version: str, name: str
) -> None:
    run([node_of(version), str(client / "test" / "scenarios.mjs"), name, broker.url, topic], client)


def test_types_are_what_is_promised(client: Path) -> None:
    run(["npm", "run", "test:types"], client)


def test_generated_code_is_current(client: Path) -> None:
    run([sys.executable, "tools/gen_javascript_protos.py", "--check"], ROOT)


def test_its_version_is_that_of_the_project(client: Path) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    package = json.loads((client / "package.json").read_text(encoding="utf-8"))
    assert package["version"] == project["version"]
    assert set(package["dependencies"]) == {"@bufbuild/protobuf"}


def test_its_source_stays_small(client: Path) -> None:
    sources = (client / "src").glob("*.ts")
    assert sum(len(path.read_text(encoding="utf-8").splitlines()) for path in sources) <= 2500


@pytest.fixture(scope="module")
def project(client: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An empty project that has installed the packed client."""
    folder = tmp_path_factory.mktemp("project")
    packed = json.loads(run(["npm", "pack", "--json", "--pack-destination", str(folder)], client))
    names = {each["path"] for each in packed[0]["files"]}
    assert {
        "package.json",
        "README.md",
        "LICENSE",
        "index.mjs",
        "index.d.mts",
        "dist/index.js",
        "dist/index.d.ts",
    } <= names
    assert not [name for name in names if name.startswith(("src", "test", "node_modules"))]
    (folder / "package.json").write_text('{"private": true}')
    words = [
        "npm",
        "install",
        "--no-audit",
        "--no-fund",
        "--ignore-scripts",
        f"./{packed[0]['filename']}",
        "@types/node@20",
        "typescript@7",
    ]
    from_registry(words, folder)
    return folder


def test_it_installs_in_an_empty_project(project: Path) -> None:
    (project / "a.cjs").write_text('console.log(typeof require("danube-client").DanubeClient.connect);')
    (project / "a.mjs").write_text(
        'import { DanubeClient } from "danube-client"; console.log(typeof DanubeClient.connect);'
    )
    for name in ("a.cjs", "a.mjs"):
        assert run(["node", name], project) == "function\n"
    (project / "b.mts").write_text(
        'import { DanubeClient } from "danube-client";\nexport const client: DanubeClient = await DanubeClient.connect("http://a");\n'
    )
    words = ["--strict", "--noEmit", "--module", "node20", "--target", "es2022", "--types", "node", "b.mts"]
    run(["npx", "--no-install", "tsc", *words], project)
    # neither @types/node nor a `lib` setting: the declarations bring what they need
    bare = [
        "--strict",
        "--noEmit",
        "--module",
        "node20",
        "--target",
        "es2022",
        "--skipLibCheck",
        "false",
        "b.mts",
    ]
    run(["npx", "--no-install", "tsc", *bare], project)


@pytest.fixture
def usual_broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path) as process:
        yield process


@pytest.mark.parametrize("page", PAGES)
def test_samples_of_the_page_run_in_an_empty_project(
    project: Path, usual_broker: BrokerProcess, page: str
) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    samples = [body for language, body in FENCE.findall(text) if language == "js"]
    assert samples
    whole = "\n".join(samples).replace("http://127.0.0.1:6651", "http://127.0.0.1:1")
    imports = sorted(set(re.findall(r"^import .*$", whole, re.MULTILINE)))
    whole = re.sub(r"^import .*$", "", whole, flags=re.MULTILINE).replace(
        "http://127.0.0.1:6650", usual_broker.url
    )
    (project / "page.mjs").write_text("\n".join(imports) + whole)
    shown = run(["node", "--unhandled-rejections=strict", "page.mjs"], project)
    if page.endswith("README.md"):
        assert "0n customer-0 { n: 0 }" in shown
        assert "first\n" in shown
        assert "1 true [ 1 ]" in shown


def test_the_example_handles_orders_and_stops(project: Path, usual_broker: BrokerProcess) -> None:
    source = (ROOT / "examples" / "javascript" / "worker.mjs").read_text(encoding="utf-8")
    (project / "worker.mjs").write_text(source)
    with subprocess.Popen(
        ["node", "worker.mjs", usual_broker.url], cwd=project, stdout=subprocess.PIPE, text=True
    ) as worker:
        assert worker.stdout is not None
        try:
            assert worker.stdout.readline() == "ready\n"
            order = {"id": 7, "items": [{"price": 5, "count": 2}, {"price": 1, "count": 1}]}
            usual_broker.publish("orders", [json.dumps(order).encode()])
            assert worker.stdout.readline() == "order 7: 11\n"
            worker.terminate()
            assert worker.stdout.readline() == "stopped\n"
            assert worker.wait(60) == 0
        finally:
            worker.kill()
    found = usual_broker.command("consume", "invoices", "--exit", "--format", "raw")
    assert json.loads(found.stdout) == {"order": 7, "total": 11}
