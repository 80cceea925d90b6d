"""JSON web tokens: who gets in, and every known way around a signature."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import hmac
import json
import sys
from collections.abc import Callable
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, ed448, ed25519, rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat
from hypothesis import example, given
from hypothesis import strategies as st
from pydanube_broker.security.authenticator import certificate_name
from pydanube_broker.security.jwt_keys import (
    MOST_CHARS,
    MOST_KEYS,
    MOST_TIME_S,
    JwtRules,
    JwtVerifier,
    Key,
    read_keys,
    read_published_keys,
    web_tokens,
)
from pydanube_broker.settings.security import Auth
from pydanube_core.errors import InvalidArgument, MissingExtra, Unauthenticated
from pydanube_core.security.api_tokens import verify as verify_api_token

NOW = 1_800_000_000.0
SECRET = b"s" * 32
RSA = rsa.generate_private_key(public_exponent=65537, key_size=2048)
EC = ec.generate_private_key(ec.SECP256R1())
ED = ed25519.Ed25519PrivateKey.generate()
PRIVATE: dict[str, Any] = {"HS256": SECRET, "RS256": RSA, "ES256": EC, "EdDSA": ED}
CLAIMS = {"sub": "ann", "exp": NOW + 600, "iss": "us", "aud": "danube"}
RULES = JwtRules(issuer="us", audience="danube", leeway_s=60)


def jwk(algorithm: str, kid: str, **more: Any) -> dict[str, Any]:
    made = jwt.get_algorithm_by_name(algorithm)
    key = SECRET if algorithm == "HS256" else PRIVATE[algorithm].public_key()
    return {**json.loads(made.to_jwk(key)), "kid": kid, **more}


def key_set(*keys: dict[str, Any]) -> bytes:
    return json.dumps({"keys": keys}).encode()


ALL = key_set(*(jwk(algorithm, algorithm) for algorithm in PRIVATE))


def verifier(keys: bytes = ALL, now: float = NOW, rules: JwtRules = RULES) -> JwtVerifier:
    return JwtVerifier(read_keys(keys, where="auth.jwt_keys"), rules, lambda: now)


def token(
    algorithm: str = "ES256", kid: str | None = None, head: dict[str, Any] | None = None, **claims: Any
) -> str:
    heads = {"kid": kid or algorithm, **(head or {})}
    body = {name: value for name, value in (CLAIMS | claims).items() if value is not None}
    return jwt.encode(body, PRIVATE[algorithm], algorithm=algorithm, headers=heads)


def by_hand(
    head: dict[str, Any], claims: dict[str, Any], signature: bytes | None = None, secret: bytes = b""
) -> str:
    def text(part: bytes) -> str:
        return base64.urlsafe_b64encode(part).decode().rstrip("=")

    signed = f"{text(json.dumps(head).encode())}.{text(json.dumps(claims).encode())}"
    made = hmac.new(secret, signed.encode(), hashlib.sha256).digest() if signature is None else signature
    return f"{signed}.{text(made)}"


@pytest.mark.parametrize("algorithm", sorted(PRIVATE))
def test_each_algorithm_lets_its_owner_in(algorithm: str) -> None:
    found = verifier().verify(
        token(algorithm, principal_name="ann", principal_type="service_account", jti="7")
    )
    assert (str(found.principal), found.method, found.credential) == ("service_account:ann", "jwt", "7")
    assert found.expires_at_s == CLAIMS["exp"] + 60


def test_a_name_has_1_to_256_characters_and_an_id_at_most_256_and_a_token_8192() -> None:
    """A longer id is cut, and a longer name or token refused."""
    for name in ("a", "a" * 256):
        found = verifier().verify(token(sub=name, jti="7" * 300))
        assert (found.principal.name, found.credential) == (name, "7" * 256)
    of_length = {
        len(text): text
        for more in range(5996, 6012)
        if (text := by_hand({"alg": "HS256", "kid": "HS256"}, {**CLAIMS, "x": "x" * more}, secret=SECRET))
    }
    longest = max(length for length in of_length if length <= MOST_CHARS)
    assert longest == MOST_CHARS
    assert verifier().verify(of_length[MOST_CHARS]).principal.name == "ann"
    with pytest.raises(Unauthenticated, match="characters"):
        verifier().verify(of_length[min(length for length in of_length if length > MOST_CHARS)])


def test_a_token_from_ahead_of_this_machines_clock_is_judged_by_the_clock_of_the_broker_only() -> None:
    ahead = 4_000_000_000.0
    found = verifier(now=ahead).verify(token(iat=ahead, nbf=ahead, exp=ahead + 600))
    assert found.issued_at_s == ahead


PEM = RSA.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)


@pytest.mark.parametrize(
    "bad",
    [
        by_hand({"alg": "none", "kid": "ES256"}, CLAIMS, b""),
        by_hand({"alg": "None"}, CLAIMS, b""),
        by_hand({"alg": "nOnE", "kid": "HS256"}, CLAIMS, b""),
        # a public key used as the secret
        by_hand({"alg": "HS256", "kid": "RS256"}, CLAIMS, secret=PEM),
        by_hand({"alg": "HS256"}, CLAIMS, secret=PEM),
        # an algorithm of the same key that nobody agreed to
        by_hand({"alg": "HS512", "kid": "HS256"}, CLAIMS, secret=SECRET),
        by_hand({"alg": "PS256", "kid": "RS256"}, CLAIMS, b"x" * 256),
        # ids that are paths or injections
        token(kid="../../etc/passwd"),
        token(kid="' OR 1=1"),
        by_hand({"alg": "HS256", "kid": 7}, CLAIMS, secret=SECRET),
        by_hand({"alg": "HS256", "kid": None}, CLAIMS, secret=b""),
        # keys that the token brings along
        token(head={"jku": "https://evil.example.org/keys"}),
        token(head={"x5u": "https://evil.example.org/cert"}),
        token(head={"jwk": jwk("ES256", "mine")}),
        token(head={"x5c": ["AAAA"]}),
        token(head={"crit": ["exp"]}),
        # claims
        token(exp=NOW - 61),
        token(exp=None),
        token(exp=str(NOW + 600)),
        token(exp=True),
        token(exp=float("nan")),
        token(nbf=NOW + 61),
        token(sub=None),
        token(sub=""),
        token(sub="ann\nadmin"),
        token(sub="a" * 257),
        token(principal_type="broker_internal"),
        token(principal_type="local"),
        token(principal_name={"a": 1}),
        token(iss="them"),
        token(iss=None),
        token(aud="other"),
        token(aud=None),
        token(aud=["other", "another"]),
        # no signature, another's, no token
        token()[:-4] + "AAAA",
        token().rpartition(".")[0] + ".",
        "..",
        "a.b.c",
        "",
        "x" * 10_000,
    ],
    ids=lambda bad: "bad",  # signatures are different in every process, and a test has one name
)  # fmt: skip
def test_whatever_is_not_good_is_refused(bad: str) -> None:
    with pytest.raises(Unauthenticated):
        verifier().verify(bad)


def test_time_is_looked_at_again_for_a_token_that_is_remembered() -> None:
    now = [NOW]
    looking = JwtVerifier(read_keys(ALL, where="k"), RULES, lambda: now[0])
    text = token()
    looking.verify(text)
    now[0] = NOW + 600 + 59
    looking.verify(text)
    now[0] = NOW + 600 + 60
    with pytest.raises(Unauthenticated, match="expired"):
        looking.verify(text)


def test_the_times_of_a_token_count_to_the_second_with_the_leeway_at_both_ends() -> None:
    """A fault of one second at the first look survived `make mutants`."""

    def at(now_s: float) -> JwtVerifier:
        return JwtVerifier(read_keys(ALL, where="k"), RULES, lambda: now_s)

    text = token(nbf=NOW)
    for good in (NOW - 60, NOW + 600 + 59.9):
        assert at(good).verify(text).principal.name
    long_ago = 1_600_000_000.0  # the broker's clock counts, and not that of the library
    assert at(long_ago).verify(token(exp=long_ago + 600)).principal.name
    for no_time in (MOST_TIME_S, -MOST_TIME_S):
        with pytest.raises(Unauthenticated, match="are numbers"):
            at(NOW).verify(token(nbf=no_time))
    with pytest.raises(Unauthenticated, match="not valid yet"):
        at(NOW - 60.1).verify(text)
    with pytest.raises(Unauthenticated, match="expired"):
        at(NOW + 600 + 60).verify(text)


def test_other_keys_end_what_the_former_let_in() -> None:
    looking = JwtVerifier((), RULES, lambda: NOW)
    looking.publish(read_published_keys(key_set(jwk("ES256", "ES256")), where="k"))
    text = token()
    looking.verify(text)
    looking.publish(read_published_keys(key_set(jwk("EdDSA", "EdDSA")), where="k"))
    with pytest.raises(Unauthenticated):
        looking.verify(text)


def test_a_token_for_somebody_else_is_refused_where_we_have_no_name() -> None:
    nameless = JwtRules(issuer=None, audience=None)
    assert verifier(rules=nameless).verify(token(aud=None)).principal.name == "ann"
    for other in ("other", ["other"], "danube"):
        with pytest.raises(Unauthenticated, match="audience"):
            verifier(rules=nameless).verify(token(aud=other))


@pytest.mark.parametrize("bad", [7, {"a": 1}, ["danube:read", None]])
def test_a_token_without_a_scope_of_ours_is_refused(bad: object) -> None:
    with pytest.raises(Unauthenticated, match="scope"):
        verifier().verify(token(scope=bad))


def test_a_broker_with_keys_and_without_the_extra_refuses_to_start_and_names_the_extra(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "jwt", None)
    settings = Auth(mode="required", jwks_url="https://issuer.example/keys", issuer="us", audience="danube")
    with pytest.raises(MissingExtra, match="security"):
        web_tokens(settings)


def test_one_key_needs_no_id() -> None:
    public = EC.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    assert verifier(public).verify(token()).principal.name == "ann"
    nameless = {name: value for name, value in jwk("ES256", "").items() if name != "kid"}
    assert verifier(key_set(nameless)).verify(token()).principal.name == "ann"
    unnamed = by_hand({"alg": "HS256"}, CLAIMS, secret=SECRET)
    secret = jwk("HS256", "a")
    assert verifier(key_set(secret)).verify(unnamed).principal.name == "ann"
    with pytest.raises(Unauthenticated):  # with two keys, it names none of them
        verifier(key_set(secret, jwk("ES256", "b"))).verify(unnamed)


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        (b"{}", "no key set"),
        (b"[]", "no key set"),
        (b"\xff", "no key set"),
        (key_set(), "0 keys"),
        (key_set(jwk("RS256", "a"), jwk("HS256", "a")), "two keys"),
        (key_set(jwk("RS256", "a"), {"kty": "oct", "k": "c2hvcnQ", "kid": "b"}), "at least"),
        (key_set(jwk("RS256", "a", alg="HS256")), "and its alg is"),
        (key_set(jwk("RS256", ""), jwk("ES256", "b")), "no kid"),
        (key_set(jwk("RS256", "a", use="enc")), "no key"),
        (key_set({**jwk("RS256", "a"), "kid": 7}), "is no text"),
        (b"-----BEGIN PUBLIC KEY-----\nx\n", "PEM"),
        (EC.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()), "PEM"),
    ],
    ids=lambda value: value if isinstance(value, str) else "keys",  # keys are others in every process
)
def test_keys_that_are_none_are_refused_at_the_start(keys: bytes, words: str) -> None:
    with pytest.raises(InvalidArgument, match=words):
        read_keys(keys, where="auth.jwt_keys")


@pytest.mark.parametrize("read", [read_keys, read_published_keys])
@pytest.mark.parametrize("algorithm", ["RS256", "ES256", "EdDSA"])
def test_a_set_with_a_private_key_gives_no_key_to_verify_by(
    algorithm: str, read: Callable[..., tuple[Key, ...]]
) -> None:
    """Its owner has shown it to all readers of the file."""
    private = json.loads(jwt.get_algorithm_by_name(algorithm).to_jwk(PRIVATE[algorithm]))
    with pytest.raises(InvalidArgument, match=r"is private|no key in it is public") as refused:
        read(key_set({**private, "kid": "a"}), where="auth.jwt_keys")
    assert refused.value.details["field"] == "auth.jwt_keys"


@pytest.mark.parametrize(
    "public",
    [ec.generate_private_key(ec.SECP384R1()).public_key(), ed448.Ed448PrivateKey.generate().public_key()],
)
def test_a_public_key_of_a_kind_without_an_algorithm_of_ours_is_refused(public: Any) -> None:
    with pytest.raises(InvalidArgument, match="of a kind that is not taken"):
        read_keys(public.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo), where="k")


@pytest.mark.parametrize(("bits", "good"), [(2047, False), (2048, True), (8192, True), (8193, False)])
def test_a_modulus_has_2048_to_8192_bits(bits: int, good: bool) -> None:
    public = rsa.RSAPublicNumbers(65537, (1 << (bits - 1)) | 1).public_key()
    text = public.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    if good:
        assert [key.algorithm for key in read_keys(text, where="k")] == ["RS256"]
    else:
        with pytest.raises(InvalidArgument, match=f"has {bits} bits"):
            read_keys(text, where="k")


@pytest.mark.parametrize("useless", [jwk("HS256", "a"), jwk("RS256", "")])
def test_a_published_set_of_secrets_or_nameless_keys_is_refused_so_that_the_keys_before_it_stay(
    useless: dict[str, Any],
) -> None:
    with pytest.raises(InvalidArgument, match="no key in it is public"):
        read_published_keys(key_set(useless), where="auth.jwks_url")


def test_a_set_has_64_keys_at_most() -> None:
    keys = [jwk("RS256", str(number)) for number in range(MOST_KEYS + 1)]
    for read in (read_keys, read_published_keys):
        assert len(read(key_set(*keys[:MOST_KEYS]), where="k")) == MOST_KEYS
        with pytest.raises(InvalidArgument, match="65 keys"):
            read(key_set(*keys), where="k")


@given(st.integers(0, 400), st.integers(1, 127))
def test_no_changed_token_gets_in(place: int, change: int) -> None:
    text = token("HS256")
    place %= len(text)
    other = chr((ord(text[place]) + change) % 128)
    changed = text[:place] + other + text[place + 1 :]
    try:
        found = verifier().verify(changed)
    except Unauthenticated:
        return
    # the last character of base64 has bits that mean nothing
    assert place == len(text) - 1
    assert found.principal.name == "ann"


#: values that a claim or a head may have in JSON, awkward ones among them
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.sampled_from([10**400, -(10**400), 2**63, 0])
    | st.floats()
    | st.text(max_size=20)
    | st.sampled_from(["ann", "user", "HS256", "none", "danube", "us", "danube:read"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)
NAMES = st.sampled_from(
    ["sub", "exp", "nbf", "iat", "iss", "aud", "jti", "scope", "scp", "principal_name", "principal_type"]
)


@given(st.dictionaries(NAMES, JSON, max_size=5))
@example({"exp": 10**400})
@example({"exp": 1e308})
@example({"iat": -(10**400)})
def test_whatever_a_signed_token_claims_is_an_identity_or_refused(claims: dict[str, Any]) -> None:
    text = by_hand({"alg": "HS256", "kid": "HS256"}, {**CLAIMS, **claims}, secret=SECRET)
    try:
        found = verifier().verify(text)
    except Unauthenticated:
        return
    assert 0 < len(found.principal.name) <= 256
    assert found.principal.type in ("user", "service_account")
    assert found.expires_at_s is not None
    assert NOW < found.expires_at_s < 1e12
    assert found.scopes is None or all(scope.startswith("danube:") for scope in found.scopes)


@given(
    st.dictionaries(st.sampled_from(["alg", "kid", "typ", "jku", "b64", "crit"]), JSON, max_size=4),
    st.binary(max_size=40),
)
def test_no_head_gets_in_without_a_signature(head: dict[str, Any], signature: bytes) -> None:
    with pytest.raises(Unauthenticated):
        verifier().verify(by_hand(head, CLAIMS, signature))


@given(
    st.text(max_size=200) | st.binary(max_size=200).map(lambda data: base64.urlsafe_b64encode(data).decode())
)
def test_no_text_is_a_token(text: str) -> None:
    for shown in (text, f"{text}.{text}.{text}", f"danube_{text}"):
        with pytest.raises(Unauthenticated):
            verifier().verify(shown)
        with pytest.raises(Unauthenticated):
            verify_api_token(shown, {}, now_ms=0)


@given(JSON)
def test_whatever_is_published_is_a_key_set_or_refused(value: Any) -> None:
    for text in (
        json.dumps(value),
        json.dumps({"keys": value}),
        json.dumps({"keys": [{"kty": "EC", "kid": value}]}),
    ):
        for read in (read_keys, read_published_keys):
            with contextlib.suppress(InvalidArgument):
                read(text.encode(), where="k")


@given(
    st.lists(
        st.tuples(st.sampled_from(["URI", "email", "DNS", "IP Address"]), st.text(max_size=300)), max_size=4
    ),
    st.lists(st.text(max_size=300), max_size=3),
)
def test_a_certificate_names_one_principal_or_is_refused(
    names: list[tuple[str, str]], common: list[str]
) -> None:
    certificate = {
        "subjectAltName": tuple(names),
        "subject": tuple((("commonName", name),) for name in common),
    }
    try:
        found = certificate_name(certificate)
    except Unauthenticated:
        return
    shown = [name for kind, name in names if kind in ("URI", "email")]
    assert found in (shown or common)
    assert found.isprintable()
    assert 0 < len(found) <= 256
    assert len([name for kind, name in names if kind == "URI"]) <= 1
