"""docs/interface.md is held to the code: the SDK's keywords."""

from __future__ import annotations

import re

from pydanube import ConsumerOptions, ProducerOptions, ReaderOptions

from tests.support.pages import ROOT

PAGE = (ROOT / "docs" / "interface.md").read_text(encoding="utf-8")


def section(title: str) -> str:
    return PAGE.split(f"## {title}\n", 1)[1].split("\n## ", 1)[0]


def test_keywords_of_the_sdk_exist_or_are_planned() -> None:
    text = section("10. Python SDK")
    planned = set(re.findall(r"`(\w+)=", text.partition("Planned of the above:")[2].split("\n\n", 1)[0]))
    for call, options in (
        ("client.producer", ProducerOptions),
        ("client.consumer", ConsumerOptions),
        ("client.reader", ReaderOptions),
    ):
        arguments = text.split(f"{call}(", 1)[1].split(") as ", 1)[0]
        named = set(re.findall(r"(\w+)=", arguments))
        assert named, call
        assert named - planned <= set(options.__dataclass_fields__), call
