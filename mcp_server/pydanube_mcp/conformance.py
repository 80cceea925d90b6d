"""`danube mcp --conformance`: the fixtures of the public conformance suite, which lie beside the tests of a clone."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from typing import Any, Final

from pydanube_core.errors import NotImplementedYet

FIXTURES: Final = "tests.conformance.mcp.fixtures"


def fixtures() -> Any:
    """Their module, with `Jobs` and `mount_all`.

    Raises:
        NotImplementedYet: this is no clone.
    """
    root = Path(__file__).resolve().parents[2]
    if not (root / FIXTURES.replace(".", "/")).is_dir():
        raise NotImplementedYet("--conformance is for the project's own tests and works in a clone of it")
    sys.path.insert(0, str(root))
    return import_module(FIXTURES)
