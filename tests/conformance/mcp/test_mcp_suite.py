"""The MCP server before the public judges: the conformance suite on both protocols, the Inspector on both transports."""

from __future__ import annotations

import json
import re
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.conformance.mcp.suite import INSTALL_S, NotAvailable, installed, run
from tools.build_mcpb import manifest

pytestmark = pytest.mark.timeout(INSTALL_S + 120)  # the first test waits for npm

# How many scenarios must pass by each revision's own list of requirements: a suite that judges less is another suite.
REQUIRED = {"2026-07-28": 37, "2025-11-25": 30}
# Those of the extensions are in no revision's list; how many checks of each must pass, so that none is skipped.
TASKS = {
    "tasks-lifecycle": 9,
    "tasks-capability-negotiation": 5,
    "tasks-wire-fields": 4,
    "tasks-request-state-removal": 3,
    "tasks-mrtr-input": 4,
    "tasks-request-headers": 5,
    "tasks-dispatch-and-envelope": 9,
    "tasks-required-task-error": 3,
    "tasks-mrtr-composition": 2,
}
SKILLS = {
    "sep-2640-skills-enumeration": 32,
    "sep-2640-skills-manifest": 6,
    "sep-2640-skills-directory": 7,
}
ALONE = re.compile(r"^Passed: (\d+)/(\d+), (\d+) failed, (\d+) warnings$", re.MULTILINE)
SCENARIO = re.compile(r"^([✓✗]) ([a-z0-9-]+): (\d+) passed, (\d+) failed$", re.MULTILINE)
UNSCORED = re.compile(r"^  [✓✗] ([a-z0-9-]+) \(", re.MULTILINE)


@pytest.fixture(scope="module", autouse=True)
def suite() -> None:
    try:
        installed()
    except NotAvailable as error:
        pytest.skip(f"not run: {error}")


@contextmanager
def serving(*flags: str) -> Iterator[str]:
    """A server of its own over HTTP."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [
        sys.executable,
        "-m",
        "pydanube_cli.main",
        "mcp",
        "--transport",
        "http",
        "--http-port",
        str(port),
    ]
    with subprocess.Popen([*command, *flags], stderr=subprocess.DEVNULL) as server:
        deadline = time.monotonic() + 60
        while True:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    break
            assert server.poll() is None, "the server ended"
            assert time.monotonic() < deadline, "the server does not listen"
            time.sleep(0.05)
        try:
            yield f"http://127.0.0.1:{port}/mcp"
        finally:
            server.terminate()


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with serving("--conformance") as found:
        yield found


@pytest.mark.parametrize("revision", REQUIRED)
def test_all_required_scenarios_pass(url: str, revision: str) -> None:
    done = run("conformance", "server", "--url", url, "--requirements", revision)
    found = {name: (sign, int(passed)) for sign, name, passed, _ in SCENARIO.findall(done.stdout)}
    unscored = set(UNSCORED.findall(done.stdout))
    required = {name: result for name, result in found.items() if name not in unscored}
    assert len(required) == REQUIRED[revision], sorted(required)
    failing = [name for name, (sign, passed) in required.items() if sign != "✓" or not passed]
    assert failing == [], done.stdout[-4000:]


def test_all_checks_of_tasks_pass(url: str) -> None:
    done = run("conformance", "server", "--url", url, "--requirements", "2026-07-28")
    found = {name: (int(passed), int(failed)) for _, name, passed, failed in SCENARIO.findall(done.stdout)}
    assert {name: found.get(name) for name in TASKS} == {name: (count, 0) for name, count in TASKS.items()}, (
        done.stdout[-4000:]
    )
    assert sum(TASKS.values()) == 44


@pytest.mark.parametrize("scenario", SKILLS)
def test_all_checks_of_skills_pass(url: str, scenario: str) -> None:
    done = run("conformance", "server", "--url", url, "--scenario", scenario)
    found = [tuple(map(int, each)) for each in ALONE.findall(done.stdout)]
    assert found == [(SKILLS[scenario], SKILLS[scenario], 0, 0)], done.stdout[-4000:]


def test_the_inspector_verifies_the_skills(url: str) -> None:
    arguments = ("--cli", url, "--protocol-era", "modern", "--method", "skills/list", "--verify", "-q")
    done = run("mcp-inspector", *arguments)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    assert "skill://cluster-health-check/SKILL.md" in done.stdout


def test_the_fixtures_exist_so_that_no_scenario_passes_for_want_of_them(url: str) -> None:
    listed = run("mcp-inspector", "--cli", url, "--method", "tools/list", "-q").stdout
    for tool in ("test_simple_text", "test_error_handling", "test_input_required_result_multi_round"):
        assert f'"{tool}"' in listed


@pytest.mark.parametrize("profile", ["default", "full"])
@pytest.mark.parametrize("era", ["legacy", "modern"])
def test_the_inspector_finds_the_schemas_portable(profile: str, era: str) -> None:
    command = (sys.executable, "-m", "pydanube_cli.main", "mcp", "--profile", profile)
    done = run(
        "mcp-inspector", "--cli", *command, "--protocol-era", era, "--method", "tools/list", "--strict", "-q"
    )
    assert done.returncode == 0, done.stdout[-1000:] + done.stderr[-3000:]
    assert '"list_topics"' in done.stdout
    assert ('"delete_topic"' in done.stdout) == (profile == "full")


def test_the_inspector_finds_them_portable_over_http() -> None:
    # Without the suite's fixtures: one of them has the composed schema that `--strict` is there to find.
    with serving("--profile", "full") as plain:
        for era in ("legacy", "modern"):
            arguments = ("--cli", plain, "--protocol-era", era, "--method", "tools/list", "--strict", "-q")
            done = run("mcp-inspector", *arguments)
            assert done.returncode == 0, done.stdout[-1000:] + done.stderr[-3000:]
            assert '"delete_topic"' in done.stdout


def test_the_published_validator_takes_the_manifest_of_the_bundle(tmp_path: Path) -> None:
    path = tmp_path / "manifest.json"
    path.write_text(json.dumps(manifest("0.1.0")))
    judged = run("mcpb", "validate", str(path))
    assert judged.returncode == 0, judged.stdout + judged.stderr
    assert "validation passes" in judged.stdout + judged.stderr
    path.write_text(json.dumps(manifest("0.1.0") | {"server": {"type": "none"}}))
    assert run("mcpb", "validate", str(path)).returncode != 0, "it judges"
