"""How to install an optional part, for errors that name a missing one."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

DISTRIBUTION = "pydanube"


def install_command(extra: str, *, origin: str | None = None) -> str:
    """Return the command that adds an extra (or several: `spark,s3`) to this installation.

    An installation from a folder (a clone, `pip install .`) is extended from that folder, because the index may not
    have the package, or another version of it.

    Args:
        extra: of pyproject.toml.
        origin: the text of the installation's direct_url.json. None: read it.
    """
    text = _origin() if origin is None else origin
    folder, editable = _folder(text)
    pip = _pip()
    if folder is None:
        return f'{pip} install "{DISTRIBUTION}[{extra}]"'
    return f'{pip} install {"-e " if editable else ""}"{folder}[{extra}]"'


def _pip() -> str:
    """Return the pip of this interpreter: the one on the path may belong to another environment."""
    return "pip" if sys.prefix == sys.base_prefix else f"{sys.executable} -m pip"


def _origin() -> str:
    from importlib import metadata  # slow to load, and rarely needed

    try:
        return metadata.distribution(DISTRIBUTION).read_text("direct_url.json") or ""
    except metadata.PackageNotFoundError:
        return ""


def _folder(origin: str) -> tuple[Path | None, bool]:
    """Return the project's folder that was installed from, and whether its sources are used in place."""
    import json
    from pathlib import Path
    from urllib.parse import unquote, urlsplit

    try:
        found = json.loads(origin) if origin else {}
        url = urlsplit(found.get("url", ""))
        editable = bool(found.get("dir_info", {}).get("editable"))
    except (ValueError, AttributeError):
        return None, False
    if url.scheme == "file" and (Path(unquote(url.path)) / "pyproject.toml").is_file():
        return Path(unquote(url.path)), editable
    beside = Path(__file__).resolve().parents[2]  # sources on the path without an installation
    if not origin and (beside / "pyproject.toml").is_file() and (beside / "tools" / "bootstrap").is_file():
        return beside, True
    return None, False
