"""Records of the security are read as they were written: with other scopes of a maker a token would give more."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st
from pydanube_core.security.identity import Maker
from pydanube_core.security.permissions import Binding, Principal, Role, Scope
from pydanube_core.security.records import (
    BINDINGS,
    REVOCATIONS,
    ROLES,
    TOKENS,
    TokenRecord,
    binding_key,
    decode_binding,
    decode_revocation,
    decode_role,
    decode_token,
    encode_binding,
    encode_revocation,
    encode_role,
    encode_token,
    revocation_key,
    role_key,
    token_key,
)
from pydanube_core.security.revocations import Revocation, RevocationKind
from pydanube_core.security.scopes import READ, SCOPES

TEXTS = st.text(st.characters(codec="utf-8"), max_size=5)
TIMES = st.integers(0, 1 << 45)
PRINCIPALS = st.builds(Principal, TEXTS, st.sampled_from(["user", "service_account"]))
MAKERS = st.builds(Maker, PRINCIPALS, st.none() | st.frozensets(st.sampled_from(SCOPES)))
TOKEN_RECORDS = st.builds(
    TokenRecord,
    token_id=TEXTS,
    name=TEXTS,
    principal=PRINCIPALS,
    digest=TEXTS,
    created_ms=TIMES,
    until_ms=st.none() | TIMES,
    used_ms=st.none() | TIMES,
    makers=st.lists(MAKERS, max_size=3).map(tuple),
    others=st.dictionaries(st.sampled_from(["of_a_newer_build", "another"]), TEXTS),
)


def made_by(*makers: Maker) -> TokenRecord:
    return TokenRecord(
        token_id="1", name="t", principal=Principal("ann"), digest="d", created_ms=1, makers=makers
    )


@given(TOKEN_RECORDS)
@example(made_by())
@example(made_by(Maker(Principal("bob"))))
@example(made_by(Maker(Principal("bob"), frozenset())))
@example(made_by(Maker(Principal("bob"), frozenset({READ}))))
def test_a_token_keeps_its_makers_and_their_scopes(token: TokenRecord) -> None:
    assert decode_token(encode_token(token)) == token


def test_a_token_without_makers_is_written_without_a_ceiling() -> None:
    assert b"makers" not in encode_token(made_by())


@given(st.builds(Role, name=TEXTS, permissions=st.lists(TEXTS, max_size=3).map(tuple)))
def test_a_role_keeps_its_permissions(role: Role) -> None:
    assert decode_role(encode_role(role)) == role


@given(
    st.builds(
        Binding,
        id=TEXTS,
        principal=PRINCIPALS,
        roles=st.lists(TEXTS, max_size=3).map(tuple),
        scope=st.sampled_from(Scope),
        resource=TEXTS,
    )
)
def test_a_binding_keeps_its_principal_its_roles_and_its_place(binding: Binding) -> None:
    assert decode_binding(encode_binding(binding)) == binding


@given(
    st.builds(
        Revocation,
        kind=st.sampled_from(RevocationKind),
        value=TEXTS,
        principal_type=st.sampled_from(["", "user", "service_account"]),
        created_ms=TIMES,
        until_ms=st.none() | TIMES,
    )
)
def test_a_revocation_keeps_the_credential_and_its_times(revocation: Revocation) -> None:
    assert decode_revocation(encode_revocation(revocation)) == revocation


def test_each_kind_of_record_is_in_the_folder_that_brokers_follow() -> None:
    assert role_key("r") == ROLES + "r"
    assert binding_key("b") == BINDINGS + "b"
    assert token_key("t") == TOKENS + "t"
    assert revocation_key("jti:7") == f"{REVOCATIONS}e3b2cfaf5ae8dc29b731b20bc3c76cfa", (
        "as builds before wrote it"
    )
