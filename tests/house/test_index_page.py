"""What an index (PyPI) shows of the package: metadata, and a README without dead links."""

from __future__ import annotations

import importlib.util
import re
from email.parser import Parser
from pathlib import Path

import pytest


@pytest.fixture(scope="module")
def metadata(wheel: Path) -> object:
    (info,) = wheel.glob("*.dist-info")
    return Parser().parsestr((info / "METADATA").read_text(encoding="utf-8"))


def test_it_is_found_by_what_it_is(metadata: object) -> None:
    classifiers = metadata.get_all("Classifier")  # type: ignore[attr-defined]
    assert "Typing :: Typed" in classifiers
    assert {f"Programming Language :: Python :: 3.{minor}" for minor in (11, 12, 13, 14)} <= set(classifiers)
    assert "messaging" in metadata["Keywords"].split(",")  # type: ignore[index]
    assert metadata.get_all("Project-URL")  # type: ignore[attr-defined]


def test_no_link_of_the_page_is_relative(metadata: object) -> None:
    assert metadata["Description-Content-Type"] == "text/markdown"  # type: ignore[index]
    text = metadata.get_payload()  # type: ignore[attr-defined]
    assert text.startswith("# pydanube")
    targets = re.findall(r"\]\(([^)\s]+)\)", text)
    assert targets
    assert [target for target in targets if not target.startswith("https://")] == []


def test_links_lead_into_the_repository_where_there_is_one(root: Path) -> None:
    spec = importlib.util.spec_from_file_location("index_page", root / "tools" / "index_page.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    text = "[Python](docs/python.md), [LICENSE](LICENSE), [x](https://y), [z](#a), ![i](p.png)"
    assert module.readme_for_index(text, "https://h/us/") == (
        "[Python](https://h/us/blob/main/docs/python.md), [LICENSE](https://h/us/blob/main/LICENSE), "
        "[x](https://y), [z](#a), ![i](https://h/us/raw/main/p.png)"
    )
    assert module.readme_for_index(text, None) == (
        "Python (`docs/python.md`), LICENSE, [x](https://y), [z](#a), "
    )
