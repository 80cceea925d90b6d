"""The documentation that ships is found by the words of a question, with the section and the part that it is about."""

from __future__ import annotations

import json
import re

import pytest
from pydanube_admin.wording.page_index import MOST_CHARS, PageIndex, sections_of
from pydanube_admin.wording.pages import SHIPPED, page_text

from tests.admin.conftest import Administered
from tests.support.pages import ROOT, anchors

pytestmark = pytest.mark.anyio

QUESTIONS = {
    "how do I replay dead letters": ("operations", "dead_lettersreplay"),
    "kubernetes readiness probe": ("operating", "kubernetes"),
    "prometheus metrics and alert rules": ("operating", "observability"),
    "postgres sink exactly once": ("connect", "postgres-sink"),
    "compatibility of json schemas, strict profile": ("concepts", "json-schema-two-profiles"),
    "rotate an api token": ("operations", "tokensrotate"),
    "three brokers on one machine": ("cluster", "three-brokers-in-a-minute"),
    "mirror topics to another region and fail over": ("links", ""),
}


@pytest.mark.parametrize("question", QUESTIONS)
async def test_a_question_leads_to_its_section(cluster: Administered, question: str) -> None:
    answer = await cluster("docs.search", query=question)
    assert QUESTIONS[question] in [(item["page"], item["section"]) for item in answer["items"]]
    assert len(json.dumps(answer).encode()) <= 8192


async def test_where_nothing_is_found_the_pages_are_named(cluster: Administered) -> None:
    answer = await cluster("docs.search", query="zzzyx")
    assert (answer["items"], answer["pages"]) == ([], list(SHIPPED))


def test_every_section_has_the_anchor_of_its_page() -> None:
    for page in SHIPPED:
        known = anchors(ROOT / "docs" / f"{page}.md")
        for section in sections_of(page, page_text(page)):
            assert not section.anchor or section.anchor in known, (page, section.anchor)


def test_the_largest_answer_is_within_its_bound() -> None:
    index = PageIndex(
        {page: page_text(page) for page in SHIPPED}, lambda text: re.findall(r"\w+", text.lower())
    )
    for word in ("the", "topic", "a", "danube", "json", "broker", "field"):
        found = index.find(word, 5)
        assert all(len(text) <= MOST_CHARS + 2 for _, text in found)


def test_a_line_beyond_the_bound_is_cut() -> None:
    index = PageIndex({"p": "# P\n\nfirst words\n\n" + "far " * 2000}, str.split)
    ((_, text),) = index.find("far", 1)
    assert text.startswith("…\nfar far")
    assert len(text) <= MOST_CHARS + 2


def test_headings_in_code_are_none() -> None:
    text = "# P\n\nabove\n\n```sh\n# no heading\n```\n\n## Two `x`\n\nbelow\n\n## Two `x`\n\nagain\n"
    assert [(each.title, each.anchor) for each in sections_of("p", text)] == [
        ("P", ""), ("P › Two x", "two-x"), ("P › Two x", "two-x-1"),
    ]  # fmt: skip
