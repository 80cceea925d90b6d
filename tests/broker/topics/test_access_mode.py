"""The access mode of a producer's request."""

from __future__ import annotations

import pytest
from pydanube_broker.topics.gate import AccessMode
from pydanube_core.errors import InvalidArgument


@pytest.mark.parametrize("mode", list(AccessMode))
def test_a_producer_gets_the_mode_that_it_asks_for(mode: AccessMode) -> None:
    assert AccessMode.parse(mode.value) is mode


def test_a_producer_that_asks_for_no_mode_shares_its_topic() -> None:
    assert AccessMode.parse("") is AccessMode.SHARED


def test_a_mode_that_does_not_exist_is_refused_with_those_that_do() -> None:
    with pytest.raises(InvalidArgument, match="'only me': use shared, exclusive or named") as refused:
        AccessMode.parse("only me")
    assert refused.value.details["field"] == "access_mode"
