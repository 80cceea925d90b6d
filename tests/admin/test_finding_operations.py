"""What people say leads to the operation they mean, or to the answer that there is none.

`phrasings/tuned.txt` was in view when the words were chosen; `phrasings/held_back.txt` was written before them, and is only
measured; `phrasings/plain_speech.txt` came later, from somebody who knew neither, and was mended on. None of them may fall
below what is promised. `phrasings/unseen.txt` was written before the last mending by somebody else, and
`phrasings/colloquial_unseen.txt`, which is slang, after it: on that the words of the list reach half of the questions.
"""

from __future__ import annotations

import tomllib
from importlib.resources import files
from pathlib import Path

import pytest
from pydanube_admin.operations.finding import ranking as ranking
from pydanube_admin.registry import OPERATIONS
from pydanube_admin.wording.ranking import other_language

from tests.admin.conftest import Administered

pytestmark = pytest.mark.anyio

PHRASINGS = Path(__file__).parent / "phrasings"


def asked(file: str) -> list[tuple[str, list[str]]]:
    """Phrasings with the operations that answer them; none where there is none."""
    lines = (PHRASINGS / file).read_text().splitlines()
    pairs = [line.split(" | ") for line in lines if line and not line.startswith("#")]
    return [(said, [] if wanted == "-" else wanted.split()) for said, wanted in pairs]


def found(said: str) -> tuple[str, ...]:
    meant = ranking().rank(said)
    return meant.operations[:3] if meant.known and meant.absent is None else ()


@pytest.mark.parametrize("file", ["tuned.txt", "held_back.txt", "plain_speech.txt", "colloquial.txt"])
def test_the_right_operation_is_among_the_first(file: str) -> None:
    phrasings = asked(file)
    there = [(said, wanted) for said, wanted in phrasings if wanted]
    first = [said for said, wanted in there if not set(wanted) & set(found(said)[:1])]
    three = [said for said, wanted in there if not set(wanted) & set(found(said))]
    existing = [said for said, wanted in phrasings if bool(found(said)) != bool(wanted)]
    assert len(first) <= 0.10 * len(there), (file, len(first), first)
    assert len(three) <= 0.03 * len(there), (file, len(three), three)
    assert len(existing) <= 0.05 * len(phrasings), (file, existing)
    assert len([said for said in existing if not dict(phrasings)[said]]) <= 0.05 * sum(
        not wanted for _, wanted in phrasings
    )


def test_what_nothing_was_mended_on_is_found_nearly_as_often() -> None:
    phrasings = asked("unseen.txt")
    there = [(said, wanted) for said, wanted in phrasings if wanted]
    assert sum(bool(set(wanted) & set(found(said)[:1])) for said, wanted in there) >= 0.85 * len(there)
    assert sum(bool(set(wanted) & set(found(said))) for said, wanted in there) >= 0.95 * len(there)
    assert sum(bool(found(said)) == bool(wanted) for said, wanted in phrasings) >= 0.9 * len(phrasings)


def test_slang_that_nothing_was_mended_on_is_found_no_more_rarely_than_now() -> None:
    """As measured once: 52 % first and 70 % among three. The aim of 90 and 97 % is not reached by words alone."""
    there = [(said, wanted) for said, wanted in asked("colloquial_unseen.txt") if wanted]
    assert sum(bool(set(wanted) & set(found(said)[:1])) for said, wanted in there) >= 0.5 * len(there)
    assert sum(bool(set(wanted) & set(found(said))) for said, wanted in there) >= 0.68 * len(there)


def test_there_are_enough_phrasings_and_none_twice() -> None:
    said = [said for file in ("tuned.txt", "held_back.txt", "plain_speech.txt") for said, _ in asked(file)]
    assert len(said) >= 300
    assert len(asked("held_back.txt")) >= 150
    for file in sorted(each.name for each in PHRASINGS.iterdir()):
        within = [each for each, _ in asked(file)]
        assert len(within) == len(set(within))


def test_the_word_list_names_operations_that_exist() -> None:
    told = tomllib.loads((files("pydanube_admin.wording") / "asked_for.toml").read_text())
    assert set(told["asked_for"]) <= set(OPERATIONS)
    for absent in told["absent"].values():
        assert set(absent["nearest"]) <= set(OPERATIONS), absent
        assert absent["because"].endswith(".")


@pytest.mark.parametrize("name", sorted(OPERATIONS))
def test_every_operation_is_found_by_its_own_names(name: str) -> None:
    for said in (name, OPERATIONS[name].tool, OPERATIONS[name].title):
        assert name in found(said), said


@pytest.mark.parametrize(
    "said",
    [
        "Thema löschen und neu anlegen, wie geht das",
        "comment supprimer un sujet",
        "удалить топик",
        "トピックを削除する",
    ],
)
async def test_another_language_is_told_so(cluster: Administered, said: str) -> None:
    answer = await cluster("operations.find", query=said)
    assert answer["items"] == []
    assert "English" in answer["none_because"]


@pytest.mark.parametrize("file", ["tuned.txt", "held_back.txt"])
def test_english_is_not_taken_for_another_language(file: str) -> None:
    assert [said for said, _ in asked(file) if other_language(said)] == []


async def test_what_does_not_exist_is_said_with_what_is_nearest(cluster: Administered) -> None:
    renamed = await cluster("operations.find", query="rename a topic")
    assert renamed["items"] == []
    assert renamed["none_because"].startswith("There is no such operation.")
    assert renamed["nearest"][0]["operation"] == "topics.replay"
    for asked_for, nearest in (
        ("is it safe to install the new version", "cluster.upgrade_check"),
        ("restart the broker", "brokers.may_stop"),
    ):
        absent = await cluster("operations.find", query=asked_for)
        assert absent["nearest"][0]["operation"] == nearest
    unknown = await cluster("operations.find", query="order a pizza with cheese")
    assert (unknown["items"], bool(unknown["nearest"])) == ([], True)


async def test_without_words_operations_are_listed(cluster: Administered) -> None:
    answer = await cluster("operations.find", query=" ", limit=50)
    assert len(answer["items"]) == 50


@pytest.mark.parametrize("said", ["x" * 200, "a_" * 100, "zq " * 66, "\u0000;--", "ß" * 200, "delete " * 28])
async def test_any_text_is_answered(cluster: Administered, said: str) -> None:
    answer = await cluster("operations.find", query=said)
    assert bool(answer["items"]) != bool(answer["none_because"])


async def test_the_schema_of_a_result_is_given_on_demand(cluster: Administered) -> None:
    asked = {"query": "list topics", "limit": 1}
    (brief,) = (await cluster("operations.find", **asked))["items"]
    assert "result" not in brief
    (whole,) = (await cluster("operations.find", **asked, schema=True))["items"]
    assert whole["operation"] == "topics.list"
    assert whole["result"]["properties"].keys() >= {"items", "next_page", "total"}


async def test_a_read_inside_a_read_is_refused_without_a_plan_for_it(cluster: Administered) -> None:
    inner = {"operation": "topics.list", "arguments": {}}
    refused = await cluster.refused("operations.read", operation="operations.read", arguments=inner)
    assert (refused.code, refused.details["field"], list(refused.next)) == (
        "INVALID_ARGUMENT",
        "operation",
        [],
    )
    assert "plan" not in refused.message
