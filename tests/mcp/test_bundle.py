"""The bundle for MCP hosts: its manifest by the published rules, and what is in the archive."""

from __future__ import annotations

import json
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from pydanube_admin.registry import TOOLS

from tools.build_mcpb import MAIN, bundle, manifest, project

# The rules of manifest 0.4 that ours could break, in our words.
STRING = {"type": "string", "minLength": 1}
RULES: dict[str, Any] = {
    "type": "object",
    "required": ["manifest_version", "name", "version", "description", "author", "server"],
    "additionalProperties": False,
    "properties": {
        "manifest_version": {"const": "0.4"},
        "name": {"type": "string", "pattern": "^[a-z0-9-]+$"},
        "display_name": STRING,
        "version": {"type": "string", "pattern": r"^\d+\.\d+\.\d+$"},
        "description": STRING,
        "long_description": STRING,
        "license": STRING,
        "keywords": {"type": "array", "items": STRING},
        "author": {
            "type": "object",
            "required": ["name"],
            "additionalProperties": False,
            "properties": {"name": STRING},
        },
        "server": {
            "type": "object",
            "required": ["type", "entry_point", "mcp_config"],
            "additionalProperties": False,
            "properties": {
                "type": {"enum": ["python", "node", "binary", "uv"]},
                "entry_point": STRING,
                "mcp_config": {
                    "type": "object",
                    "required": ["command"],
                    "additionalProperties": False,
                    "properties": {
                        "command": STRING,
                        "args": {"type": "array", "items": {"type": "string"}},
                        "env": {"type": "object", "additionalProperties": {"type": "string"}},
                    },
                },
            },
        },
        "tools": {
            "type": "array",
            "items": {
                "type": "object",
                "required": ["name"],
                "additionalProperties": False,
                "properties": {"name": STRING, "description": STRING},
            },
        },
        "tools_generated": {"type": "boolean"},
        "prompts_generated": {"type": "boolean"},
        "compatibility": {
            "type": "object",
            "additionalProperties": False,
            "properties": {
                "platforms": {"type": "array", "items": {"enum": ["darwin", "win32", "linux"]}},
                "runtimes": {
                    "type": "object",
                    "additionalProperties": False,
                    "properties": {"python": STRING},
                },
            },
        },
        "user_config": {
            "type": "object",
            "additionalProperties": {
                "type": "object",
                "required": ["type", "title", "description"],
                "additionalProperties": False,
                "properties": {
                    "type": {"enum": ["string", "number", "boolean", "directory", "file"]},
                    "title": STRING,
                    "description": STRING,
                    "required": {"type": "boolean"},
                    "default": {"type": ["string", "number", "boolean"]},
                },
            },
        },
    },
}


def test_the_manifest_keeps_the_rules() -> None:
    made = manifest("0.1.0")
    jsonschema.validate(made, RULES)
    assert {tool["name"] for tool in made["tools"]} == {
        t for t, each in TOOLS.items() if each.default_profile
    }
    used = json.dumps(made["server"])
    for name, option in made["user_config"].items():
        assert f"${{user_config.{name}}}" in used, "what is asked for is passed on"
        assert isinstance(option["default"], bool) is (option["type"] == "boolean")
    assert made["user_config"]["read_only"]["default"] is True


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    wheel = tmp_path / "pydanube-0.1.0-py3-none-any.whl"
    wheel.write_bytes(b"not a real one")
    return bundle(wheel, tmp_path / "out" / "danube.mcpb")


def test_the_archive_holds_what_the_manifest_names(archive: Path) -> None:
    with zipfile.ZipFile(archive) as opened:
        names = set(opened.namelist())
        made = json.loads(opened.read("manifest.json"))
        text = opened.read("pyproject.toml").decode()
    assert made["version"] == "0.1.0"
    assert names == {
        "manifest.json",
        "pyproject.toml",
        made["server"]["entry_point"],
        "pydanube-0.1.0-py3-none-any.whl",
    }
    assert 'path = "pydanube-0.1.0-py3-none-any.whl"' in text
    assert text == project("pydanube-0.1.0-py3-none-any.whl")


def test_the_same_sources_make_the_same_bytes(archive: Path, tmp_path: Path) -> None:
    again = bundle(tmp_path / "pydanube-0.1.0-py3-none-any.whl", tmp_path / "again.mcpb")
    assert again.read_bytes() == archive.read_bytes()


def test_its_program_serves_with_what_the_form_says(tmp_path: Path) -> None:
    """Started as a host would, with a value left empty; only reading is the default."""
    (tmp_path / "main.py").write_text(MAIN)
    lines = [
        {"jsonrpc": "2.0", "id": 1, "method": "initialize",
         "params": {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "x", "version": "1"}}},
        {"jsonrpc": "2.0", "method": "notifications/initialized"},
        {"jsonrpc": "2.0", "id": 2, "method": "tools/list"},
    ]  # fmt: skip
    env = {
        "PATH": "",
        "DANUBE_BUNDLE_CLUSTERS": "http://127.0.0.1:1",
        "DANUBE_BUNDLE_PRINCIPAL": "${user_config.principal}",
        "DANUBE_BUNDLE_READ_ONLY": "true",
    }
    with subprocess.Popen(
        [sys.executable, tmp_path / "main.py"], env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    ) as process:  # fmt: skip
        assert process.stdin is not None
        assert process.stdout is not None
        for line in lines:
            process.stdin.write(json.dumps(line).encode() + b"\n")
        process.stdin.flush()
        answers = [json.loads(process.stdout.readline()) for _ in range(2)]
        process.stdin.close()
        assert process.wait(timeout=30) == 0
    tools = {tool["name"] for tool in answers[1]["result"]["tools"]}
    assert "health_check" in tools
    assert "create_topic" not in tools
