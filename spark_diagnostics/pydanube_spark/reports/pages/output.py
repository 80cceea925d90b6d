"""Write a report: NAME.parquet/, NAME.json, NAME.html, NAME.png into one folder.

Each file gets its name when it is complete. A report that fails leaves the former files in place.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pydanube_core.errors import InvalidArgument

from pydanube_spark.reports.pages.page import ReportPage, html
from pydanube_spark.reports.pages.picture import png


def check_folder(folder: Path) -> None:
    """Create the folder and check that it is writable, before a report that takes a minute.

    Raises `InvalidArgument` if it is not.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise _unwritable(folder, error) from error


def _unwritable(folder: Path, error: OSError) -> InvalidArgument:
    return InvalidArgument(
        f"the report cannot be written to {folder}: {error.strerror or error}. Choose another folder with --out",
        field="out",
        value=str(folder),
    )


def write_report(
    folder: Path,
    name: str,
    *,
    rows: Any,
    shown: Sequence[Mapping[str, Any]],
    report: Mapping[str, Any],
    page: ReportPage,
) -> dict[str, str]:
    """Write the files and return them by kind: parquet, json, html, png.

    Args:
        rows: all rows as an Arrow table. `shown` has the same rows for JSON.
        report: the answer of `--json`, without rows and files.

    Raises:
        InvalidArgument: the folder cannot be written.
    """
    files = {kind: str(folder / f"{name}.{kind}") for kind in ("parquet", "json", "html", "png")}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _parquet(folder / f"{name}.parquet", rows)
        _put(folder / f"{name}.html", html(page).encode())
        try:
            _put(folder / f"{name}.png", png(page))
        except ImportError:
            del files["png"]
        whole = {**report, "rows": shown, "files": files}
        _put(folder / f"{name}.json", json.dumps(whole, default=str, indent=1).encode())
    except OSError as error:
        raise _unwritable(folder, error) from error
    return files


def _put(path: Path, data: bytes) -> None:
    temporary = path.with_name(f".{path.name}.tmp")
    temporary.write_bytes(data)
    os.replace(temporary, path)


def _parquet(folder: Path, rows: pa.Table) -> None:
    """Write the table as a folder, the form in which Spark writes and reads tables."""
    fresh = folder.with_name(f".{folder.name}.tmp")
    shutil.rmtree(fresh, ignore_errors=True)
    fresh.mkdir()
    pq.write_table(rows, fresh / "part-00000.zstd.parquet", compression="zstd")
    (fresh / "_SUCCESS").touch()
    shutil.rmtree(folder, ignore_errors=True)
    os.replace(fresh, folder)
