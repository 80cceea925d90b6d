"""Search the pages that the package ships, so that an assistant need not guess how something works."""

from __future__ import annotations

from functools import cache
from typing import Annotated

import anyio.to_thread
from pydantic import Field

from pydanube_admin.engine.context import Context
from pydanube_admin.engine.declaration import Example
from pydanube_admin.engine.models import Effect, Request, Result
from pydanube_admin.engine.operation import operation
from pydanube_admin.operations.finding import ranking
from pydanube_admin.wording.page_index import PageIndex
from pydanube_admin.wording.pages import SHIPPED, page_text


class SearchDocsRequest(Request):
    query: Annotated[
        str, Field(min_length=1, max_length=200, description="English words: key-shared order nack")
    ]
    limit: Annotated[int, Field(ge=1, le=5, description="Most sections")] = 5


class DocsSection(Result):
    page: str  # danube://docs/{page} has all of it
    title: str
    section: str  # the anchor in the page, or empty for its beginning
    text: str  # at most 1 200 characters of it


class FoundSections(Result):
    items: list[DocsSection]
    pages: list[str] | None  # all pages, where nothing was found


@operation(
    "docs.search",
    effect=Effect.READ,
    summary="Show the documentation of this version, offline: how a feature works, is set up, is used in code.",
    examples=(Example({"query": "dead letters replay"}, "the text of a page"),),
)
async def search_docs(context: Context, request: SearchDocsRequest) -> FoundSections:
    # Made once, which takes tenths of a second
    index = await anyio.to_thread.run_sync(_index)
    found = index.find(request.query, request.limit)
    return FoundSections(
        items=[
            DocsSection(page=section.page, title=section.title, section=section.anchor, text=text)
            for section, text in found
        ],
        pages=None if found else list(SHIPPED),
    )


@cache
def _index() -> PageIndex:
    return PageIndex({page: page_text(page) for page in SHIPPED}, ranking().words)
