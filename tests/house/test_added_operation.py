"""An operation is added as ARCHITECTURE.md says, in a copy of the tree: nothing else has to be edited."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.support.pages import ROOT


@pytest.mark.long  # a copy of the tree, the generators and three test files: half a minute
def test_an_operation_needs_its_module_and_its_test_and_nothing_else() -> None:
    program = [sys.executable, str(ROOT / "tools" / "add_operation.py")]
    done = subprocess.run(program, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr
    by_hand, generated = done.stdout.split("generated:")
    assert by_hand.split()[3:] == [
        "admin_core/pydanube_admin/operations/topic_owner.py",
        "tests/admin/test_topic_owner.py",
    ]
    for page in ("docs/operations.md", "client/pydanube/admin/generated/operations.py"):
        assert page in generated
