"""The tier's process loads what it needs, and nothing else that happens to be installed."""

from __future__ import annotations

import asyncio
import importlib.util
import marshal
import subprocess
import sys
from pathlib import Path

import pytest
from pydanube_broker.tier.child import TierChild
from pydanube_core.telemetry import table_named
from pydanube_core.telemetry.tables import ColumnType
from pydanube_storage.objects import StoreOptions

pytestmark = pytest.mark.usefixtures("cold_helpers")
_VALUES = {
    ColumnType.INT: 1,
    ColumnType.FLOAT: 0.5,
    ColumnType.TEXT: "x",
    ColumnType.TIME: 1_000,
    ColumnType.FLAG: True,
}


@pytest.mark.skipif(sys.platform != "linux", reason="a process shows what it has mapped on Linux")
def test_columns_are_made_without_pandas(tmp_path: Path) -> None:
    """pyarrow would import it: a second of the processor for the first object of every broker."""
    assert importlib.util.find_spec("pandas") is not None, "it is there to be loaded"
    row = [_VALUES[column.kind] for column in table_named("brokers").columns]
    rows = marshal.dumps([row])

    def loaded(pid: int | None) -> str:
        return Path(f"/proc/{pid}/maps").read_text()

    async def write() -> str:
        child = TierChild(StoreOptions(url=str(tmp_path)))
        try:
            file = {"table": "brokers", "key": "a/b.parquet", "sizes": [len(rows)]}
            await child.call("telemetry_write", {"files": [file]}, rows)
            return loaded(child.pid)
        finally:
            await child.close()

    maps = asyncio.run(write())
    assert "pyarrow" in maps
    assert "pandas" not in maps


def test_process_starts_without_the_settings() -> None:
    """pydantic takes 10 MB of each such process."""
    program = "import sys, pydanube_broker.tier.process; print('pydantic' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
