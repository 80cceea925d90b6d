"""Put the documentation's pages for `docs.search` into the wheel, as one archive.

A clone, and so an editable installation, has its own `docs/`.
"""

from __future__ import annotations

import runpy
import tempfile
from pathlib import Path
from typing import Any
from zipfile import ZIP_DEFLATED, ZipFile, ZipInfo

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

__all__ = ["WheelPages"]


class WheelPages(BuildHookInterface[Any]):
    """Adds `pydanube_admin/pages.zip` to a wheel."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version == "editable":
            return
        root = Path(self.root)
        shipped = runpy.run_path(str(root / "admin_core/pydanube_admin/wording/pages.py"))["SHIPPED"]
        self._folder = tempfile.TemporaryDirectory()
        archive = Path(self._folder.name, "pages.zip")
        with ZipFile(archive, "w") as pages:
            for page in shipped:  # without times: the same pages give the same bytes
                text = (root / "docs" / f"{page}.md").read_bytes()
                pages.writestr(ZipInfo(f"{page}.md"), text, compress_type=ZIP_DEFLATED)
        build_data["force_include"][str(archive)] = "pydanube_admin/pages.zip"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        if version != "editable":
            self._folder.cleanup()
