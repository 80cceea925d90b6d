"""docs/design.md calls planned only what does not exist, and names the tests of each promise."""

from __future__ import annotations

import re
from collections.abc import Mapping

import pytest
from pydanube_admin.registry import OPERATIONS

from tests.support.grpc_services import SERVICES
from tests.support.pages import ROOT

PAGE = (ROOT / "docs" / "design.md").read_text(encoding="utf-8")
REPLICATION = any("replica" in name.lower() for name in SERVICES)

# What the page may call planned, by the words of its sentence, and whether it exists meanwhile.
PLANNED: Mapping[str, bool] = {
    "marks parts that do not exist yet": False,  # the page's word for it, explained
    "`replicated`": REPLICATION,
    "in-sync set and replicas": REPLICATION,
    "Latest-per-key compaction": "latest_per_key" in str(OPERATIONS["topics.set_policies"].input_schema),
}


def sentences(page: str) -> list[str]:
    return re.split(r"(?<=[.:])\s+(?=[A-Z*`(-])|\n\n|\n- ", page)


def test_what_exists_is_not_called_planned() -> None:
    for sentence in sentences(PAGE):
        if "planned" in sentence.lower():
            known = [words for words in PLANNED if words in sentence]
            assert known, f"planned, and nobody looks whether it exists: {sentence}"
            assert not any(PLANNED[words] for words in known), f"this exists: {sentence}"


@pytest.mark.parametrize("words", PLANNED)
def test_what_is_looked_for_stands_on_the_page(words: str) -> None:
    assert any(words in sentence and "planned" in sentence.lower() for sentence in sentences(PAGE))


def test_what_is_listed_as_not_yet_is_no_operation() -> None:
    missing = PAGE.partition("## Not yet\n")[2].lower()
    groups = {name.partition(".")[0] for name in OPERATIONS} - {"topics", "brokers", "cluster", "operations"}
    assert not {
        group for group in (*groups, "danube_admin", "undo", "runbook") if re.search(rf"\b{group}", missing)
    }


def test_every_promise_names_its_tests() -> None:
    promises = re.findall(
        r"^\d\. .*", PAGE.partition("## 1. Promises\n")[2].partition("\n## ")[0], re.MULTILINE
    )
    assert len(promises) == 7
    for promise in promises:
        named = re.findall(r"`(tests/[^`]+)`", promise.partition(" Tests: ")[2])
        assert named, promise
        for test in named:
            found = ROOT / test
            assert found.is_file() or list(found.glob("test_*.py")), test
