"""The file that a link sends to its source: whoever makes the link chooses both."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest
from pydanube_broker.services.mirror import SourceCluster
from pydanube_core.errors import ClusterError, InvalidArgument
from pydanube_core.links import LinkRecord

SOURCE = "http://127.0.0.1:1"


class Answered:
    def __init__(self) -> None:
        self.error: ClusterError | None = None

    def lost(self, error: ClusterError) -> None:
        self.error = error


class Sent:
    """The links of a broker: keeps the heads of what is sent."""

    def __init__(self) -> None:
        self.heads: list[Any] = []

    def ask(self, head: Any, *_: object) -> None:
        self.heads.append(head)

    open = ask


@pytest.mark.parametrize(
    "text",
    ["-----BEGIN PRIVATE KEY-----\nMIIE\n", "8f" * 32, "root:x:0:0", "danube_a_b\nand more", "", "a.b"],
)
def test_a_file_that_is_no_token_is_not_sent_to_the_source(tmp_path: Path, text: str) -> None:
    file = tmp_path / "file"
    file.write_text(text)
    record = LinkRecord(name="eu", source="127.0.0.1:1", topics=("/default/*",), token_file=str(file))
    links, answered = Sent(), Answered()
    SourceCluster(cast(Any, links), record).open_wire(SOURCE, cast(Any, answered))
    assert isinstance(answered.error, InvalidArgument)
    assert answered.error.details["field"] == "token_file"
    assert not links.heads


@pytest.mark.parametrize("text", ["danube_0a1b_x-Y_z\n", "eyJ0.eyJz_x.c2-ln"])
def test_a_token_is_sent(tmp_path: Path, text: str) -> None:
    file = tmp_path / "file"
    file.write_text(text)
    record = LinkRecord(name="eu", source="127.0.0.1:1", topics=("/default/*",), token_file=str(file))
    headers = SourceCluster(cast(Any, Sent()), record).headers(SOURCE, "/x")
    assert (b"authorization", f"Bearer {text.strip()}".encode()) in headers
