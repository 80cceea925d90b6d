"""docs/ai-administration.md: recorded from its source, with calls that today's tools take."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import jsonschema
import pytest
from pydanube_admin.registry import TOOLS
from pydanube_mcp import McpClient, print_config
from pydanube_mcp.clusters import Clusters
from pydanube_mcp.profiles import Profile, explain
from pydanube_mcp.sizing import MAX_RESULT_BYTES
from pydanube_mcp.tools import tool_list

from tools.operator_questions import ORIGINAL_LIST_BYTES, QUESTIONS

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "ai-administration.md").read_text(encoding="utf-8")
SOURCE = (ROOT / "tools" / "conversations.md").read_text(encoding="utf-8")
CALL = re.compile(
    r"```json call\n(\w+) (\{[^\n]*\})\n```\n\n```json (answer|refused)\n(.*?)\n```",
    re.DOTALL,
)
AGAIN = "; run python tools/record_conversations.py"


def test_the_page_is_recorded_from_its_source() -> None:
    """Every line of text stands in the page, every call was made, in this order."""
    calls = [
        line.split(" ", 2)[1]
        for line in SOURCE.splitlines()
        if line.startswith("-> ") and not line.startswith(("-> comparison", "-> shell "))
    ]
    assert [found[1] for found in CALL.finditer(PAGE)] == calls, AGAIN
    rest = CALL.sub("", PAGE)
    missing = [
        line for line in SOURCE.splitlines() if line and not line.startswith("-> ") and line not in rest
    ]
    assert missing == [], AGAIN


def test_every_call_is_one_that_the_tool_takes() -> None:
    refused = []
    for found in CALL.finditer(PAGE):
        tool, arguments = found[1], json.loads(found[2])
        operation = TOOLS[tool]
        assert operation.default_profile, "the conversations get along with the tools of the default profile"
        jsonschema.validate(arguments, operation.input_schema)
        if found[3] == "refused":
            refused.append(re.search(r'"code": "(\w+)"', found[4]))
    assert [code[1] for code in refused if code] == ["PLAN_USED"]


def test_what_is_said_of_missing_tools_is_what_the_command_says() -> None:
    shown = re.findall(r"```console\n\$ danube mcp ([^\n]+)\n([^\n]+)\n```", PAGE)
    assert len(shown) == SOURCE.count("-> shell danube mcp ") == 3
    for flags, said in shown:
        name = flags.partition("--explain ")[2]
        assert said == explain(name, Profile.DEFAULT, read_only="--read-only" in flags), AGAIN


def test_what_a_consumer_wrote_is_quoted_as_untrusted_only() -> None:
    answers = "\n".join(found[4] for found in CALL.finditer(PAGE))
    assert answers.count("Ignore your rules") == 1
    before = answers.partition("Ignore your rules")[0]
    assert '"untrusted": {' in before[-300:]


def test_the_comparison_has_every_question_answered() -> None:
    rows = [
        line for line in PAGE.splitlines() if line.startswith("| ") and line.endswith((" yes |", " NO |"))
    ]
    assert len(rows) == len(QUESTIONS) >= 10
    for row, question in zip(rows, QUESTIONS, strict=True):
        text, theirs, _, calls, size, right = (cell.strip() for cell in row.strip("|").split("|"))
        assert text == question.text
        assert theirs == (str(len(question.theirs)) if question.theirs else "no answer")
        assert int(calls) == len(question.ours)
        assert int(size) <= MAX_RESULT_BYTES * len(question.ours)
        assert right == "yes"
    total = PAGE.splitlines()[-1]
    assert str(ORIGINAL_LIST_BYTES) in total
    listed = re.search(r"list of tools: (\d+) \|", total)
    assert listed is not None
    tools = tool_list(
        Profile.DEFAULT,
        read_only=False,
        clusters=Clusters({"one": "http://x:1"}, timeout_s=1, principal=None),
    )
    seen = [
        {"name": each.name, "description": each.description, "inputSchema": each.input_schema}
        for each in tools
    ]
    today = len(json.dumps(seen, ensure_ascii=False, separators=(",", ":")).encode())
    assert abs(int(listed[1]) - today) <= today // 20, f"the list has {today} bytes by now{AGAIN}"


@pytest.mark.parametrize("client", list(McpClient))
def test_the_page_names_every_program_and_its_text_is_valid(client: McpClient) -> None:
    assert f"--print-config {client.value}" in PAGE
    text = print_config(client, program=Path("/opt/danube"))
    if client is McpClient.CLAUDE_CODE:
        assert shlex.split(text)[:3] == ["claude", "mcp", "add"]
        return
    entry = json.loads(text)["servers" if client is McpClient.VSCODE else "mcpServers"]["danube"]
    assert entry["command"] == "/opt/danube"
    assert entry["args"] == ["mcp"]
