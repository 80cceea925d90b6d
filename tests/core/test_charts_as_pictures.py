"""Figures of a picture keep to their places."""

from __future__ import annotations

import io

import pytest
from pydanube_core.charts.picture import Picture, png


def test_a_long_figure_does_not_run_into_the_next() -> None:
    image_of = pytest.importorskip("PIL.Image").open
    drawn = Picture(
        title="", subtitle="", charts=[], colours={}, figures=[("1,684,159,272,000,000", "unread")]
    )
    image = image_of(io.BytesIO(png(drawn, scale=2))).convert("L")
    beside = image.crop((2 * 164, 0, image.width, image.height))  # the next one begins at 170
    assert beside.getextrema() == (255, 255)
