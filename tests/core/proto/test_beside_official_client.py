"""Our modules and the official `danube` package define the same symbols; one process can hold both.

Without a pool of our own the second import fails with "duplicate symbol": the last test shows that the danger is
real, so that the others cannot pass for want of it.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.official_client import official_client_environment, run_beside_official_client

SCRIPT = Path(__file__).with_name("beside_official_script.py")


@pytest.mark.parametrize("implementation", ["upb", "python"])
@pytest.mark.parametrize("order", [("ours", "theirs"), ("theirs", "ours")], ids="-then-".join)
def test_both_work_in_one_process(
    order: tuple[str, str], implementation: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION", implementation)
    done = run_beside_official_client(SCRIPT, *order)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["exchanged"] == {"danube": 18, "danube_schema": 20}
    assert report["published"] == {
        "payload": "hello",
        "attributes": {"k": "v"},
        "producer_id": 42,
        "topic": "/default/orders",
        "schema_id_given": False,
    }


def test_in_the_default_pool_our_files_would_collide() -> None:
    code = """
import danube
from google.protobuf import descriptor_pool
from pydanube_core.generated import danube_pb2
descriptor_pool.Default().AddSerializedFile(danube_pb2.DESCRIPTOR.serialized_pb)
"""
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env=official_client_environment(),
    )
    assert done.returncode != 0
    assert "duplicate symbol" in done.stderr
