"""`danube schemas …`: long texts by --file, and the exit code of a check. The operations themselves are pretended."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
from pydanube_admin.registry import OPERATIONS
from pydanube_cli.operations import command_of
from pydanube_core.errors import InvalidArgument

VERDICT = {
    "is_compatible": True,
    "differences": [],
    "compatibility_mode": "backward",
    "transitive": False,
    "compared_with": [1],
}


class Asked:
    """Stands for the broker: remembers the calls, answers with `result`."""

    def __init__(self, result: dict[str, Any]) -> None:
        self.calls: list[tuple[str, dict[str, Any]]] = []
        self._result = result

    def __call__(self, url: str, operation: str, arguments: dict[str, Any], **options: Any) -> dict[str, Any]:
        self.calls.append((operation, arguments))
        return self._result


def run(name: str, words: list[str], result: dict[str, Any]) -> tuple[int, list[tuple[str, dict[str, Any]]]]:
    asked = Asked(result)
    group, verb = OPERATIONS[name].words
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("pydanube_admin.remote.call_sync", asked)
        code = command_of(OPERATIONS[name]).main(f"{group} {verb}", words)
    return code, asked.calls


def test_a_schema_out_of_a_file(tmp_path: Path) -> None:
    file = tmp_path / "orders.json"
    file.write_text('{"title": "Größe"}\n', encoding="utf-8")
    words = ["orders-value", "--schema-type", "json_schema", "--file", str(file), "--json"]
    code, calls = run("schemas.register", words, {"version": 1})
    assert code == 0
    assert calls == [
        (
            "schemas.register",
            {
                "subject": "orders-value",
                "schema_type": "json_schema",
                "schema_definition": '{"title": "Größe"}\n',
            },
        )
    ]


def test_a_schema_out_of_stdin_or_on_the_line(monkeypatch: pytest.MonkeyPatch) -> None:
    class Stdin:
        buffer = io.BytesIO(b'"int"')

        @staticmethod
        def isatty() -> bool:
            return False

    monkeypatch.setattr("sys.stdin", Stdin())
    for given in (["--file", "-"], ["--schema-definition", '"int"']):
        _, calls = run("schemas.register", ["s", "--schema-type", "avro", *given], {})
        assert calls[0][1]["schema_definition"] == '"int"'


@pytest.mark.parametrize(("compatible", "expected"), [(True, 0), (False, 6)])
def test_a_check_ends_with_6_when_incompatible(
    compatible: bool, expected: int, capsys: pytest.CaptureFixture[str]
) -> None:
    verdict = {**VERDICT, "is_compatible": compatible}
    words = ["s", "--schema-type", "avro", "--schema-definition", '"int"', "--json"]
    code, _ = run("schemas.check", words, verdict)
    assert code == expected
    assert json.loads(capsys.readouterr().out) == verdict


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["--file", "/nowhere/at/all"],
        ["--file", "x", "--schema-definition", '"int"'],
        ["--file", __file__ + "c-not-there"],
    ],
)
def test_one_text_is_needed_and_it_must_be_readable(words: list[str]) -> None:
    with pytest.raises(InvalidArgument, match="--file") as caught:
        run("schemas.register", ["s", "--schema-type", "avro", *words], {})
    assert caught.value.exit_code == 2


def test_a_file_that_is_no_text(tmp_path: Path) -> None:
    file = tmp_path / "x"
    file.write_bytes(b"\xff")
    with pytest.raises(InvalidArgument, match="not UTF-8"):
        run("schemas.register", ["s", "--schema-type", "avro", "--file", str(file)], {})
