"""The session that all tests of this folder share: one that does not answer any more is replaced."""

from __future__ import annotations

from typing import Any

import psutil
import pytest

pytestmark = pytest.mark.long  # a virtual machine for each


def test_a_jvm_that_ended_is_replaced(spark: Any, sessions: Any) -> None:
    (process,) = (each for each in psutil.Process().children() if each.name() == "java")
    process.kill()
    process.wait()
    assert sessions.answering() is not spark
    assert sessions.answering().range(3).count() == 3


def test_a_session_whose_call_was_cut_off_is_replaced(spark: Any, sessions: Any) -> None:
    sessions.broken = True
    another = sessions.answering()
    assert another is not spark
    assert another.range(3).count() == 3
    assert sessions.answering() is another
