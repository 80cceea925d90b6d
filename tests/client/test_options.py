"""Options as values: what is refused, and that keywords and fields are the same."""

import dataclasses
import subprocess
import sys
from pathlib import Path
from typing import Any, get_type_hints

import pytest
from pydanube import ConsumerOptions, InvalidArgument, ProducerOptions, ReaderOptions, connect
from pydanube.options import ConsumerArguments, ProducerArguments, ReaderArguments


@pytest.mark.parametrize(
    ("options", "arguments"),
    [
        (ProducerOptions, ProducerArguments),
        (ConsumerOptions, ConsumerArguments),
        (ReaderOptions, ReaderArguments),
    ],
)
def test_keywords_are_the_fields_with_their_types(options: type, arguments: type) -> None:
    fields = {field.name for field in dataclasses.fields(options)}
    hints = get_type_hints(options)
    assert get_type_hints(arguments) == {name: hints[name] for name in fields}


@pytest.mark.parametrize(
    ("make", "field"),
    [
        (lambda: ProducerOptions(batch_bytes=10**9), "batch_bytes"),
        (lambda: ProducerOptions(window_messages=0), "window_messages"),
        (lambda: ProducerOptions(linger_ms=float("nan")), "linger_ms"),
        (lambda: ProducerOptions(routing="keys"), "routing"),  # type: ignore[arg-type]
        (lambda: ProducerOptions(partitions=True), "partitions"),
        (lambda: ProducerOptions(compression=None), "compression"),  # type: ignore[arg-type]
        (lambda: ConsumerOptions(type="shraed"), "type"),  # type: ignore[arg-type]
        (lambda: ConsumerOptions(credit_messages="many"), "credit_messages"),  # type: ignore[arg-type]
        (lambda: ConsumerOptions(ack_timeout_ms=0), "ack_timeout_ms"),
        (lambda: ReaderOptions(credit_bytes=0), "credit_bytes"),
        (lambda: connect().consumer("a", "b", start="yesterday"), "start"),
        (lambda: connect().reader("a", stop="yesterday"), "stop"),
    ],
)
def test_what_cannot_be_is_refused_by_name(make: Any, field: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        make()
    assert caught.value.details["field"] == field
    assert field in caught.value.message


def test_keywords_stand_above_the_options_given() -> None:
    usual = ConsumerOptions(type="shared", name="a", credit_messages=5)
    client = connect()
    consumer = client.consumer("orders", "billing", usual, name="b")
    assert consumer.name == "b"
    assert client.consumer("orders", "billing", usual).name == "a"


def test_a_misspelt_choice_fails_type_checking(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        "from pydanube import connect\nconnect().consumer('a', 'b', type='shared')\n"
        "connect().consumer('a', 'b', type='shraed')\n"
    )
    checked = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--follow-imports=silent", str(program)],
        capture_output=True,
        text=True,
        cwd=Path(__file__).parents[2],
    )
    wrong = [line for line in checked.stdout.splitlines() if "error:" in line]
    assert len(wrong) == 1
    assert "program.py:3" in wrong[0]
