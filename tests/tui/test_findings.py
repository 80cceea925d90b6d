"""Findings as lines and rows: nothing that matters is cut, nothing stands twice."""

from __future__ import annotations

from typing import Any, Final

import pytest
from pydanube_tui.views.wording import caller, finding_lines, said_of

FINDING: Final[dict[str, Any]] = {
    "rule": "falling_behind",
    "severity": "warning",
    "subject": {"topic": "/shop/orders", "subscription": "fraud-check"},
    "summary": "/shop/orders / fraud-check falls behind: 2822 messages behind, 9.4 a second come, 2.5 are read",
    "evidence": {f"a_number_with_a_long_name_{each}": each for each in range(6)},
    "ruled_out": [{"rule": "consumer_crash_loop", "because": "no consumer has gone lately"}],
    "next": [
        {
            "command": "danube topics describe /shop/orders",
            "why": "see whether more partitions " + "would help " * 8,
        }
    ],
}


def _texts(height: int, width: int) -> list[str]:
    return ["".join(text for text, _ in line) for line in finding_lines([FINDING], (height, width))]


def test_a_high_screen_continues_long_texts_on_the_next_line() -> None:
    lines = _texts(40, 100)
    assert max(map(len, lines)) <= 100
    together = " ".join(" ".join(lines).split())
    assert all(f"{name} {value}" in together for name, value in FINDING["evidence"].items())
    assert FINDING["next"][0]["why"].strip() in together
    assert "excluded consumer_crash_loop: no consumer has gone lately" in together


def test_a_low_screen_gives_each_text_one_line() -> None:
    assert len(_texts(24, 100)) == 1 + len(("evidence", "excluded", "next"))


@pytest.mark.parametrize("width", [1, 2, 13])
def test_a_narrow_terminal_has_findings_too(width: int) -> None:
    """They were wrapped at no width at all, which failed."""
    assert "falls behind" in " ".join(" ".join(_texts(40, width)).split())


def test_a_row_that_names_the_subject_does_not_repeat_it() -> None:
    assert said_of("/shop/orders › fraud-check", FINDING["summary"]).startswith("falls behind: 2822 messages")
    assert said_of("/shop/orders › billing", FINDING["summary"]) == FINDING["summary"]
    waits = "7 messages of /shop/orders wait for subscription 'billing' and no consumer is attached"
    assert said_of("/shop/orders › billing", waits) == "7 messages wait and no consumer is attached"


def test_a_caller_without_a_name_is_shown_without_its_port() -> None:
    assert caller("ipv4:127.0.0.1:45704") == "127.0.0.1"
    assert caller("ipv6:[::1]:45704") == "[::1]"
    assert caller("alice") == "alice"
