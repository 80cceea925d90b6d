"""The long tests kill brokers at functions that they name, in processes where a wrong name shows only after minutes."""

from __future__ import annotations

import pytest

from tests.cluster.killed_at_a_step import STEPS, function_of


@pytest.mark.parametrize("step", STEPS)
def test_each_step_at_which_a_broker_is_killed_exists(step: str) -> None:
    _, function = function_of(step)
    assert callable(function)
