"""`danube connect new` writes what runs; `run`, `list`, `--check` and `--dry-run` from the command line."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from pydanube.testing import InMemoryCluster
from pydanube_connect import Source
from pydanube_connect.installed import OURS, connector_class
from pydanube_connect.scaffold import scaffold
from pydanube_core.connectors import registers_schemas
from pydanube_core.errors import AlreadyExists, InvalidArgument

from tests.connect.targets import HttpTarget

DANUBE = str(Path(sys.executable).parent / "danube")


def danube(*words: str, cwd: Path, code: int = 0) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [DANUBE, *words], cwd=cwd, capture_output=True, text=True, timeout=100, check=False,
        env={name: value for name, value in os.environ.items() if not name.startswith("DANUBE_")},
    )  # fmt: skip
    assert done.returncode == code, done.stderr
    return done


@pytest.mark.parametrize("kind", ["sink", "source"])
def test_a_new_package_passes_its_own_test(kind: str, tmp_path: Path) -> None:
    danube("connect", "new", kind, "my_thing", cwd=tmp_path)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"],
        cwd=tmp_path / "my_thing", capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
    module = (tmp_path / "my_thing" / "my_thing" / "__init__.py").read_text()
    body = module[module.index("class MyThing(") :]
    assert len(body.splitlines()) <= 30


def test_the_class_of_a_new_package_is_found_beside_its_file(memory: InMemoryCluster, tmp_path: Path) -> None:
    danube("connect", "new", "sink", "my_thing", cwd=tmp_path)
    with memory.connect_sync() as client, client.producer("my-thing") as producer:
        producer.send(b"{}")
    words = ("connect", "run", "my_thing/my-thing.toml", "--broker", memory.url)
    assert "in order" in danube(*words, "--check", cwd=tmp_path).stdout
    danube(*words, "--once", cwd=tmp_path)
    assert (tmp_path / "records.jsonl").read_text().strip() == "{}"


def test_a_name_that_is_none_or_taken_is_refused(tmp_path: Path) -> None:
    scaffold("sink", "mine", tmp_path)
    with pytest.raises(AlreadyExists):
        scaffold("sink", "mine", tmp_path)
    with pytest.raises(InvalidArgument):
        scaffold("sink", "../mine", tmp_path)


def test_installed_connectors_are_listed_with_their_settings(tmp_path: Path) -> None:
    found = json.loads(danube("connect", "list", "--json", cwd=tmp_path).stdout)["items"]
    assert {"http-sink", "webhook-source"} <= {item["connector"] for item in found}
    assert all(item["about"] for item in found)
    settings = json.loads(danube("connect", "list", "http-sink", "--json", cwd=tmp_path).stdout)["settings"]
    assert {
        "name": "method",
        "type": "POST | PUT | PATCH",
        "default": '"POST"',
        "about": "of requests with a body",
    } in settings
    assert all(each["about"] for each in settings)


def test_a_connector_is_checked_shown_and_run(
    memory: InMemoryCluster, target: HttpTarget, tmp_path: Path
) -> None:
    file = tmp_path / "hooks.toml"
    file.write_text(
        f'name = "hooks"\nconnector = "http-sink"\ntopic = "orders"\n[settings]\nurl = "{target.url}"\n'
    )
    broker = ("--broker", memory.url)
    refused = danube("connect", "run", "hooks.toml", "--check", *broker, cwd=tmp_path, code=1)
    assert "danube topics create /default/orders" in refused.stderr
    with memory.connect_sync() as client, client.producer("orders") as producer:
        producer.send_many([b'{"id":%d}' % n for n in range(5)])
    assert (
        "hooks: in order" in danube("connect", "run", "hooks.toml", "--check", *broker, cwd=tmp_path).stdout
    )
    shown = danube("connect", "run", "hooks.toml", "--dry-run", "2", *broker, cwd=tmp_path).stdout
    assert shown.splitlines() == [f'POST {target.url} {{"id":{n}}}' for n in range(2)]
    assert target.asked == []
    ran = danube("connect", "run", "hooks.toml", "--once", "--json", *broker, cwd=tmp_path)
    assert json.loads(ran.stdout)["records"] == 5
    assert [asked.json["id"] for asked in target.asked] == list(range(5))


def test_a_file_with_a_mistake_ends_before_anything_is_reached(tmp_path: Path) -> None:
    (tmp_path / "x.toml").write_text(
        'name = "x"\nconnector = "http-sink"\ntopic = "t"\n[settings]\nurll = "http://x"\n'
    )
    done = danube("connect", "run", "x.toml", "--json", cwd=tmp_path, code=2)
    error = json.loads(done.stderr)["error"]
    assert (error["code"], error["details"]["field"]) == ("INVALID_ARGUMENT", "settings.url")


def test_the_reason_of_a_failed_attempt_is_logged_without_secrets(
    memory: InMemoryCluster, tmp_path: Path
) -> None:
    with memory.connect_sync() as client, client.producer("t") as producer:
        producer.send(b"{}")
    (tmp_path / "word").write_text("127.0.0.1:9/hidden-as-it-is")
    (tmp_path / "x.toml").write_text(
        'name = "x"\nconnector = "http-sink"\ntopic = "t"\n[settings]\nurl = "http://${file:word}"\n'
        "[delivery]\nretries = 1\nbackoff_s = 0.01\n"
    )
    words = ("connect", "run", "x.toml", "--once", "--broker", memory.url)
    done = danube(*words, cwd=tmp_path, code=3)
    (line,) = [line for line in done.stderr.splitlines() if "connector_attempt_failed" in line]
    assert "connector=x" in line
    assert "cannot be reached" in line
    assert "hidden" not in done.stderr


def test_who_declares_a_source_that_registers_schemas_is_known_by_its_name() -> None:
    for name in OURS:
        found = connector_class(name, path="x.toml")
        registers = issubclass(found, Source) and found.schema is not Source.schema
        assert registers_schemas(name) == registers, name
    assert registers_schemas("my_sources:Http")
