from __future__ import annotations

from tests.broker.journal.conftest import fast_path

__all__ = ["fast_path"]
