from __future__ import annotations

from tests.support.one_loop import one_loop  # noqa: F401  # a fixture
