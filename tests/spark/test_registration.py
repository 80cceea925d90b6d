"""Registering our data sources in a session of the application's own."""

from __future__ import annotations

import sys
from typing import Any

import pytest
from pydanube_spark import register


@pytest.mark.parametrize(
    ("chosen", "kept"), [("python3", sys.executable), ("/opt/chosen/python", "/opt/chosen/python")]
)
def test_local_workers_run_this_python_unless_another_was_chosen(
    spark: Any, monkeypatch: pytest.MonkeyPatch, chosen: str, kept: str
) -> None:
    """Spark's default is the first python3 in PATH, which is another one when this environment is not activated."""
    monkeypatch.setattr(spark.sparkContext, "pythonExec", chosen)
    register(spark)
    assert spark.sparkContext.pythonExec == kept
    monkeypatch.undo()
    register(
        spark
    )  # the sources keep the program that they were registered with, and other tests share the session
