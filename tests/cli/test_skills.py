"""`danube skills`: each skill has the open form, its samples run, and installing never replaces another's file."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from pydanube_cli.skills_command import FILE, FOLDERS, description_of, shipped

from tests.cli.running import Danube
from tests.support.broker_process import BrokerProcess, client_environment
from tests.support.pages import FENCE, ROOT
from tests.support.warm_commands import put_commands

SKILLS = shipped()


def blocks(skill: str, language: str) -> list[str]:
    return [text for kind, text in FENCE.findall(SKILLS[skill]) if kind == language]


@pytest.mark.parametrize("name", SKILLS)
def test_a_skill_has_the_open_form_and_leads_to_others(name: str) -> None:
    text = SKILLS[name]
    assert text.startswith(f"---\nname: {name}\ndescription: ")
    assert re.fullmatch(r"[a-z0-9-]{1,64}", name)
    assert len(description_of(text)) <= 1024
    assert "Not for" in description_of(text)
    assert len(text.splitlines()) <= 120
    assert set(re.findall(r"danube-[a-z]+(?:-[a-z]+)*", description_of(text))) <= SKILLS.keys()
    assert f"{name}/{FILE}" in (ROOT / "AGENTS.md").read_text()


@pytest.mark.long
def test_the_worker_and_its_tests_run_as_they_stand_there(tmp_path: Path) -> None:
    (worker,) = blocks("danube-worker", "python")
    (tests,) = blocks("danube-worker-tests", "python")
    (tmp_path / "worker.py").write_text(worker)
    (tmp_path / "test_worker.py").write_text(tests)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_worker.py"],
        cwd=tmp_path, env=client_environment(), capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 passed" in done.stdout


@pytest.mark.parametrize(
    "skill",
    [
        "danube-from-kafka",
        pytest.param("danube-operate", marks=pytest.mark.long),
        pytest.param("danube-diagnose", marks=pytest.mark.long),
    ],
)
def test_the_commands_of_a_skill_run_in_order(skill: str, tmp_path: Path) -> None:
    for text in blocks(skill, "toml"):
        assert tomllib.loads(text)["connector"] == "kafka-source"
    with BrokerProcess(tmp_path, memory=True) as broker:
        if skill == "danube-diagnose":
            broker.ask("topics.create", topic="orders")
            broker.ask("subscriptions.create", topic="orders", subscription="billing")
        places = {"DANUBE_BROKER_URL": broker.info["grpc"], "DANUBE_ADMIN_ENDPOINT": broker.info["admin"]}
        script = "\n".join(["set -ex", *blocks(skill, "sh")])
        environment = client_environment(places)
        put_commands(tmp_path)
        environment["PATH"] = f"{tmp_path}:{environment['PATH']}"
        done = subprocess.run(
            ["bash", "-c", script], cwd=tmp_path, env=environment, capture_output=True, text=True,
            timeout=120, check=False, stdin=subprocess.DEVNULL,
        )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]


def test_installing_writes_each_skill_for_each_program_and_again(danube: Danube, tmp_path: Path) -> None:
    for _ in range(2):
        written = danube("skills", "install", "--dir", str(tmp_path), "--json").result["written"]
    assert len(written) == len(FOLDERS) * len(SKILLS)
    for folder in FOLDERS.values():
        assert {each.parent.name for each in (tmp_path / folder).rglob(FILE)} == SKILLS.keys()
    one = tmp_path / "one"
    one.mkdir()
    danube("skills", "install", "--for", "cursor", "--dir", str(one))
    assert [each.name for each in one.iterdir()] == [".cursor"]


def test_another_file_of_that_name_stays_and_nothing_is_written(danube: Danube, tmp_path: Path) -> None:
    own = tmp_path / ".cursor" / "skills" / "danube-worker" / FILE
    own.parent.mkdir(parents=True)
    own.write_text("my own notes\n")
    refused = danube("skills", "install", "--dir", str(tmp_path), "--json")
    assert refused.error["code"] == "ALREADY_EXISTS"
    assert own.read_text() == "my own notes\n"
    assert not (tmp_path / ".claude").exists()
    missing = danube("skills", "install", "--dir", str(tmp_path / "none"), "--json")
    assert missing.error["details"]["field"] == "dir"


def test_a_link_out_of_the_project_is_not_followed(danube: Danube, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    project = tmp_path / "project"
    project.mkdir()
    (project / ".claude").symlink_to(outside)
    assert "link" in danube("skills", "install", "--dir", str(project), "--json").error["message"]
    assert list(outside.iterdir()) == []
