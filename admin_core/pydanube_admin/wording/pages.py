"""The pages that the package ships, for `docs.search` and `danube://docs/{page}`: those for users, not for contributors."""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Final
from zipfile import ZipFile

SHIPPED: Final = (
    "quickstart", "faq", "concepts", "delivery", "python", "administration", "ai-administration", "ai-clients", "console", "javascript",
    "connect", "connectors", "spark", "data-formats", "operating", "cold-tier", "backup", "upgrading", "security", "permissions",
    "cluster", "cluster-metadata", "links", "operations", "reference", "interface",
)  # fmt: skip


@cache
def page_text(page: str) -> str:
    """Return the Markdown of one of `SHIPPED`. The wheel has an archive of them, a clone its own `docs/`."""
    shipped = files("pydanube_admin") / "pages.zip"
    if shipped.is_file():
        with shipped.open("rb") as archive, ZipFile(archive) as pages:
            return pages.read(f"{page}.md").decode()
    return (Path(__file__).resolve().parents[3] / "docs" / f"{page}.md").read_text(encoding="utf-8")
