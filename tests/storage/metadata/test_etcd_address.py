"""What `--metadata` may name, and what is said about what it may not."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydanube_core.errors import InvalidArgument
from pydanube_storage.metadata.etcd import EtcdAddress, EtcdOptions


def test_members_and_prefix_are_read() -> None:
    address = EtcdAddress.parse("etcd://h1:2379,[::1]:02380/a/b/")
    assert (address.endpoints, address.prefix, address.tls) == (("h1:2379", "[::1]:2380"), "/a/b", False)
    assert str(address) == "etcd://h1:2379,[::1]:2380/a/b"


def test_prefix_comes_from_the_url_then_the_setting_then_the_house() -> None:
    assert EtcdAddress.parse("etcd://h:1/mine", prefix="other").prefix == "/mine"
    assert EtcdAddress.parse("etcd://h:1", prefix="other").prefix == "/other"
    assert EtcdAddress.parse("etcd://h:1").prefix == "/danube"


def test_etcds_or_a_certificate_means_tls() -> None:
    plain = EtcdAddress.parse("etcd://h:1")
    assert not EtcdOptions(address=plain).secure
    assert EtcdOptions(address=EtcdAddress.parse("etcds://h:1")).secure
    assert EtcdOptions(address=plain, ca=Path("ca.crt")).secure


@pytest.mark.parametrize(
    "url",
    [
        "http://h:2379",
        "etcd:/h:2379",
        "etcd://",
        "etcd://h",
        "etcd://h:",
        "etcd://:2379",
        "etcd://h:0",
        "etcd://h:65536",
        "etcd://h:2379,",
        "etcd://h:1,h:1",
        "etcd://a b:1",
        "etcd://::1:2379",
        "etcd://h:1/a//b",
        "etcd://h:1/" + "a" * 300,
    ],
)
def test_what_is_no_address_is_refused_with_an_example_or_a_rule(url: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        EtcdAddress.parse(url)
    assert caught.value.details["field"] in ("metadata.url", "metadata.prefix")


def test_password_in_the_url_is_refused_and_not_repeated() -> None:
    with pytest.raises(InvalidArgument, match="DANUBE_METADATA__PASSWORD") as caught:
        EtcdAddress.parse("etcd://root:s3cret@h:2379/p")
    assert "s3cret" not in caught.value.to_json()


@pytest.mark.parametrize("part", [{"user": "u"}, {"password": "p"}, {"cert": Path("c")}, {"key": Path("k")}])
def test_half_a_pair_is_refused(part: dict[str, str]) -> None:
    with pytest.raises(InvalidArgument, match=r"together"):
        EtcdOptions(address=EtcdAddress.parse("etcd://h:1"), **part)  # type: ignore[arg-type]


def test_password_is_not_shown() -> None:
    options = EtcdOptions(address=EtcdAddress.parse("etcd://h:1"), user="root", password="s3cret")
    assert "s3cret" not in repr(options)
