"""The words about a broker that is gone: what to do depends on whether its journal is copied, and who acts on it."""

from __future__ import annotations

import pytest
from pydanube_admin.gone_owners import GoneOwner

TAKE_OVER = "topics take-over"


@pytest.mark.parametrize(
    ("copies", "taken_over", "said", "unsaid"),
    [
        (False, False, "Start it again", TAKE_OVER),
        (False, True, "Start it again", "Other brokers take"),  # without a copy there is nothing to take over
        (True, False, TAKE_OVER, "Other brokers take"),
        (True, True, "Other brokers take its topics over", TAKE_OVER),
    ],
)
def test_the_remedy_fits_what_the_brokers_do_by_themselves(
    copies: bool, taken_over: bool, said: str, unsaid: str
) -> None:
    gone = GoneOwner(broker_id="7", topics=3, reported_at_ms=None, copies=copies, taken_over=taken_over)
    error = gone.error("/default/t")
    assert said in error.message
    assert unsaid not in error.message
    assert "danube brokers remove 7" in error.message
    assert gone.diagnosis("/default/t", {"topic": "/default/t"}).findings[0].summary == gone.sentence(
        "/default/t"
    )
