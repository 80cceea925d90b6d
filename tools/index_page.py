"""The README as an index page (PyPI) shows it: there is no repository beside it, so no link may be relative.

With `Source = "…"` under [project.urls] a link leads into that repository. Without it the text stays and the link goes,
with the path behind it where the text does not say it: a page without dead links.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

__all__ = ["IndexPage", "readme_for_index"]

_PICTURE = re.compile(r"!\[([^\]]*)\]\((?!https?://)([^)\s]+)\)")
_LINK = re.compile(r"(?<!!)\[([^\]]+)\]\((?!https?://|#|mailto:)([^)\s]+)\)")


def readme_for_index(text: str, source: str | None) -> str:
    """The README with absolute links; a picture without a repository to show it from is left out."""
    text = _PICTURE.sub(rf"![\1]({source.rstrip('/')}/raw/main/\2)" if source else "", text)

    def absolute(link: re.Match[str]) -> str:
        words, target = link[1], link[2]
        if source:
            return f"[{words}]({source.rstrip('/')}/blob/main/{target})"
        return words if target in words else f"{words} (`{target}`)"

    return _LINK.sub(absolute, text)


class IndexPage(MetadataHookInterface):
    """Fills `readme` of the metadata."""

    def update(self, metadata: dict[str, Any]) -> None:
        text = Path(self.root, "README.md").read_text(encoding="utf-8")
        source = metadata.get("urls", {}).get("Source")
        metadata["readme"] = {"content-type": "text/markdown", "text": readme_for_index(text, source)}
