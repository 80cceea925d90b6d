"""What holds for every list there is: a filter or a name that matches nothing says so, and times are told in one way."""

from __future__ import annotations

from typing import Any, Final

import pytest
from pydanube_admin.engine.models import Page
from pydanube_admin.registry import OPERATIONS

from tests.admin.conftest import Administered

pytestmark = pytest.mark.anyio

LISTS: Final = sorted(name for name, each in OPERATIONS.items() if issubclass(each.result, Page))
#: arguments without which a list is none
NEEDED: Final[dict[str, dict[str, Any]]] = {
    "dead_letters.list": {"topic": "orders", "subscription": "billing"},
    "messages.search": {"topic": "orders"},
    "objects.list": {"topic": "orders"},
    "schemas.versions": {"subject": "orders-value"},
}
#: an argument that names something → the errors that say it is not there
NAMES: Final = {
    "topic": {"TOPIC_NOT_FOUND"},
    "namespace": {"NAMESPACE_NOT_FOUND"},
    "subscription": {"SUBSCRIPTION_NOT_FOUND"},
    "operation": {"INVALID_ARGUMENT"},
    "subject": {"SCHEMA_NOT_FOUND", "SUBJECT_NOT_FOUND"},
}


@pytest.fixture
async def listed(cluster: Administered) -> Administered:
    if not (await cluster("schemas.list"))["items"]:
        await cluster(
            "schemas.register",
            subject="orders-value",
            schema_type="json_schema",
            schema_definition='{"type": "object"}',
        )
    return cluster


@pytest.mark.parametrize("operation", LISTS)
async def test_a_filter_that_matches_nothing_says_so(listed: Administered, operation: str) -> None:
    answer = await listed(operation, **NEEDED.get(operation, {}), filter="no-such-name*")
    assert answer["items"] == []
    assert "no-such-name*" in answer["items_reason"]


@pytest.mark.parametrize(
    ("operation", "name"),
    [
        (operation, argument.name)
        for operation in LISTS
        for argument in OPERATIONS[operation].arguments
        if argument.name in NAMES
        and (operation, argument.name) != ("audit.query", "topic")  # it may be deleted
    ],
)
async def test_a_name_of_what_does_not_exist_is_an_error(
    listed: Administered, operation: str, name: str
) -> None:
    refused = await listed.refused(operation, **{**NEEDED.get(operation, {}), name: "no-such-name"})
    assert refused.code in NAMES[name]
    assert "no-such-name" in refused.message
