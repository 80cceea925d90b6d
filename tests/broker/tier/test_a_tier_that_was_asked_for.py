"""A tier that was asked for and cannot work is refused, with the command that mends it; one that was not may be off."""

from __future__ import annotations

import importlib.util
from typing import Any

import pytest
from pydanube_broker.settings.load import load_settings
from pydanube_broker.tier.options import check_asked_for
from pydanube_core.errors import InvalidArgument, MissingExtra
from pydanube_core.extras import install_command


def settings(url: str | None) -> Any:
    return load_settings(env={} if url is None else {"DANUBE_TIER__URL": url})


@pytest.fixture
def without(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Modules that are not installed."""
    missing: set[str] = set()
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *more: None if name in missing else find(name, *more)
    )
    return missing


@pytest.mark.parametrize("url", ["ftp://host/x", "http://host/x", "s3:///x", "s3://user:secret@bucket/x"])
def test_a_url_that_is_no_store_is_refused_by_name(url: str) -> None:
    with pytest.raises(InvalidArgument) as refused:
        check_asked_for(settings(url))
    assert refused.value.details["field"] == "tier.url"
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize(
    ("url", "module", "extra"),
    [("s3://bucket/x", "s3fs", "s3"), ("/data/objects", "pyarrow", "tier"), ("memory://x", "fsspec", "tier")],
)
def test_what_a_store_needs_is_named_with_the_command(
    without: set[str], url: str, module: str, extra: str
) -> None:
    pytest.importorskip("s3fs")
    check_asked_for(settings(url))
    without.add(module)
    with pytest.raises(MissingExtra) as refused:
        check_asked_for(settings(url))
    assert install_command(extra) in refused.value.message


def test_a_tier_that_nobody_asked_for_may_be_off(without: set[str]) -> None:
    without.add("pyarrow")
    check_asked_for(settings(None))
