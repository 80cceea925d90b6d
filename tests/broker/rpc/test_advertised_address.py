"""What clients are told to dial."""

from __future__ import annotations

import ipaddress

import pytest
from pydanube_broker.settings.advertised import advertised_url, check_advertised, dialled_host
from pydanube_core.errors import InvalidArgument


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "[::]"])
def test_all_interfaces_become_an_address_that_can_be_dialled(host: str) -> None:
    assert not ipaddress.ip_address(dialled_host(host)).is_unspecified
    assert "0.0.0.0" not in advertised_url(None, host, 6650)
    assert "[::]" not in advertised_url(None, host, 6650)


@pytest.mark.parametrize(
    ("given", "host", "url"),
    [
        (None, "127.0.0.1", "http://127.0.0.1:6650"),
        (None, "::1", "http://[::1]:6650"),
        (None, "broker.example.org", "http://broker.example.org:6650"),
        ("http://a.example.org:7000/", "0.0.0.0", "http://a.example.org:7000"),
        ("https://a.example.org:443", "0.0.0.0", "https://a.example.org:443"),
        ("a.example.org:7000", "::", "http://a.example.org:7000"),
        ("http://[2001:db8::5]:7000//", "::", "http://[2001:db8::5]:7000"),
    ],
)
def test_it_has_a_scheme_and_no_slash_behind(given: str | None, host: str, url: str) -> None:
    secure = url.startswith("https")
    assert advertised_url(given, host, 6650, secure=secure) == url


@pytest.mark.parametrize(
    "url",
    [
        "",
        "http://",
        "http://0.0.0.0:6650",
        "http://[::]:6650",
        "http://a_b:6650",
        "http://a",
        "http://a:port",
        "http://a:70000",
        "ftp://a:1",
        "http://a:1/path",
        "http://user@a:1",
    ],
)
def test_what_some_client_could_not_dial_is_refused(url: str) -> None:
    with pytest.raises(InvalidArgument, match="advertised_url"):
        check_advertised(url)
