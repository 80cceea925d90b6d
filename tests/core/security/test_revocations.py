"""Revocations: what they cover and what not."""

from __future__ import annotations

from dataclasses import replace

import pytest
from pydanube_core.security.identity import Identity
from pydanube_core.security.permissions import Principal
from pydanube_core.security.records import decode_revocation, encode_revocation, revocation_key
from pydanube_core.security.revocations import Revocation, RevocationKind, Revocations, serial_number

ANN = Identity(principal=Principal("ann"), method="jwt", credential="7", issued_at_s=1000.0)
BY_CERTIFICATE = Identity(principal=Principal("ann"), method="certificate", credential="0A1B")


def revoked(kind: RevocationKind, value: str, principal_type: str = "") -> Revocations:
    made = Revocation(kind=kind, value=value, principal_type=principal_type, created_ms=1_500_000)
    assert decode_revocation(encode_revocation(made)) == made
    return Revocations.of([made])


def test_a_token_is_known_by_its_id_and_a_certificate_by_its_number() -> None:
    by_id = revoked(RevocationKind.JTI, "7")
    assert [by_id.cover(each) for each in (ANN, replace(ANN, credential="8"), BY_CERTIFICATE)] == [
        True,
        False,
        False,
    ]
    by_number = revoked(RevocationKind.CERTIFICATE, "0A1B")
    assert [by_number.cover(each) for each in (replace(ANN, credential="0A1B"), BY_CERTIFICATE)] == [
        False,
        True,
    ]


@pytest.mark.parametrize(
    ("issued_s", "covered"), [(1499.9, True), (1500.0, False), (1501.0, False), (None, True)]
)
def test_of_a_subject_what_was_issued_before_is_covered(issued_s: float | None, covered: bool) -> None:
    of_ann = revoked(RevocationKind.SUBJECT, "ann", "user")
    assert of_ann.cover(replace(ANN, issued_at_s=issued_s)) is covered
    assert not of_ann.cover(replace(ANN, principal=Principal("ann", "service_account")))
    assert not of_ann.cover(replace(ANN, principal=Principal("bob")))


@pytest.mark.parametrize(
    ("until_ms", "now_ms", "over"),
    [(None, 0, False), (None, 1 << 60, False), (2000, 1999, False), (2000, 2000, True), (2000, 2001, True)],
)
def test_a_revocation_is_over_from_its_end_on_and_without_an_end_never(
    until_ms: int | None, now_ms: int, over: bool
) -> None:
    each = Revocation(kind=RevocationKind.JTI, value="7", created_ms=1000, until_ms=until_ms)
    assert each.is_over(now_ms) is over


@pytest.mark.parametrize("text", ["0a:1b", "0x0A1B", "A1B", "0A1B", "00 0a 1b"])
def test_a_serial_number_is_taken_as_any_tool_shows_it(text: str) -> None:
    assert serial_number(text) == "0A1B"


@pytest.mark.parametrize("text", ["", "x", "-1", "0" * 65, "0A1B\n;", "1_0"])
def test_what_is_no_serial_number_is_refused(text: str) -> None:
    with pytest.raises(ValueError):  # the caller says which field
        serial_number(text)


def test_any_id_has_a_key_of_its_own() -> None:
    assert revocation_key("jti:../x") != revocation_key("jti:x")
    assert revocation_key("jti:/").count("/") == 2


def test_each_credential_has_one_revocation_and_principals_of_two_types_have_two() -> None:
    ids = [
        Revocation(kind=kind, value="ann", principal_type=principal_type, created_ms=1).id
        for kind, principal_type in (
            (RevocationKind.JTI, ""),
            (RevocationKind.CERTIFICATE, ""),
            (RevocationKind.SUBJECT, "user"),
            (RevocationKind.SUBJECT, "service_account"),
        )
    ]
    assert ids == ["jti:ann", "certificate:ann", "subject:user:ann", "subject:service_account:ann"]
