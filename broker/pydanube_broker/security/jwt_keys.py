"""Keys of JSON web tokens, and their verification with PyJWT (RFC 7519, 7517, 8725).

Keys come from a file or a URL (`published_keys`) of the settings, never from a token: `jku`, `x5u`, `jwk` and `x5c` in
a head are refused, and `kid` only chooses among the trusted keys. A key has one algorithm, by its own type. The token's
head must name that one, so that neither `none` nor a public key used as a secret is accepted.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from pydanube_core.errors import InvalidArgument, MissingExtra, Unauthenticated
from pydanube_core.extras import install_command
from pydanube_core.recent import RecentDict
from pydanube_core.security.identity import Identity
from pydanube_core.security.permissions import Principal
from pydanube_core.security.scopes import named_scopes

if TYPE_CHECKING:
    from pathlib import Path

    from pydanube_broker.settings.security import Auth

ALGORITHMS: Final = ("HS256", "RS256", "ES256", "EdDSA")
MOST_KEYS: Final = 64
MOST_CHARS: Final = 8192  # of a token
MOST_TIME_S: Final = 1e11  # of a claim: the year 5138
SECRET_BYTES: Final = 32  # RFC 7518 3.2: a key of at least the hash's size
MODULUS_BITS: Final = 2048
MOST_MODULUS_BITS: Final = 8192  # verifying a signature of 16 384 bits takes a millisecond
REMEMBERED: Final = 10_000  # verified tokens
_NOT_BELIEVED: Final = "the token is signed by no key that is believed here"
_FOREIGN_KEYS: Final = ("jku", "x5u", "jwk", "x5c", "crit", "zip")


@dataclass(frozen=True, slots=True)
class Key:
    """One trusted key, with its id and its algorithm."""

    kid: str  # empty for the only key of a set
    algorithm: str
    material: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class JwtRules:
    """The required claims of a token."""

    issuer: str | None
    audience: str | None
    leeway_s: float = 60.0


def need_extra() -> None:
    """Check that PyJWT is installed. Raises `MissingExtra`."""
    try:
        import cryptography  # noqa: F401
        import jwt  # noqa: F401
    except ImportError:
        raise MissingExtra(
            f"tokens of this kind need more than the base installation: {install_command('security')}",
            extra="security",
        ) from None


def read_keys(text: bytes, *, where: str) -> tuple[Key, ...]:
    """Parse a JSON web key set, or one public key in PEM.

    Raises `InvalidArgument`: it is malformed, a key is too weak or of another kind, or two have one id.
    """

    wrong = _wrong(where)
    from cryptography.hazmat.primitives.serialization import load_pem_public_key

    if text.lstrip().startswith(b"-----BEGIN"):
        try:
            public = load_pem_public_key(text)
        except ValueError as error:
            raise wrong(f"it is no public key in PEM ({error})") from None
        return (_checked("", public, wrong),)
    keys: dict[str, Key] = {}
    for each in _signing(text, wrong):
        key = _read_key(each, wrong)
        if key.kid in keys:
            raise wrong(f"two keys have the id {key.kid!r}: give each its own kid")
        keys[key.kid] = key
    if len(keys) > 1 and "" in keys:
        raise wrong("several keys, and one has no kid: give each its own")
    return tuple(keys.values())


def read_published_keys(text: bytes, *, where: str) -> tuple[Key, ...]:
    """Return the supported public keys of a JSON web key set that an identity provider publishes.

    Keys of another kind or without an id are skipped, because they are for other uses. So are secrets, because a
    published secret is none.

    Raises `InvalidArgument`: it is malformed, no key in it is usable, or two have one id.
    """
    wrong = _wrong(where)
    keys: dict[str, Key] = {}
    for each in _signing(text, wrong):
        try:
            key = _read_key(each, wrong)
        except InvalidArgument:
            continue
        if key.kid in keys:
            raise wrong(f"two keys have the id {key.kid!r}")
        if key.kid and key.algorithm != "HS256":
            keys[key.kid] = key
    if not keys:
        raise wrong("no key in it is public, has a kid, and is for RS256, ES256 or EdDSA")
    return tuple(keys.values())


def _wrong(where: str) -> Callable[[str], InvalidArgument]:
    return lambda why: InvalidArgument(f"{where}: {why}", field=where.partition(" ")[0], value=None)


def _signing(text: bytes, wrong: Callable[[str], InvalidArgument]) -> list[dict[str, Any]]:
    """Return the signing keys of a JSON web key set."""
    try:
        found = json.loads(text)["keys"]
        assert isinstance(found, list)
    except (ValueError, KeyError, TypeError, AssertionError, RecursionError):
        raise wrong('it is no key set: write {"keys": [...]} (RFC 7517), or one public key in PEM') from None
    if not 0 < len(found) <= MOST_KEYS:
        raise wrong(f"it has {len(found)} keys. Use 1 to {MOST_KEYS}")
    signing = [each for each in found if isinstance(each, dict) and each.get("use", "sig") == "sig"]
    if not signing:
        raise wrong("no key in it is for signatures")
    return signing


def _read_key(each: dict[str, Any], wrong: Callable[[str], InvalidArgument]) -> Key:
    import jwt

    kid = each.get("kid", "")
    if not isinstance(kid, str):
        raise wrong(f"the id {str(kid)[:100]!r} of a key is no text")
    try:
        material = jwt.PyJWK(each, algorithm=_algorithm_of(each)).key
    except (jwt.PyJWTError, ValueError, TypeError, KeyError):
        raise wrong(f"the key {kid!r} is none of {', '.join(ALGORITHMS)}") from None
    key = _checked(kid, material, wrong)
    if each.get("alg", key.algorithm) != key.algorithm:
        raise wrong(f"the key {kid!r} is for {key.algorithm}, and its alg is {each['alg']!r}")
    return key


def _algorithm_of(key: Mapping[str, Any]) -> str:
    return {"oct": "HS256", "RSA": "RS256", "EC": "ES256", "OKP": "EdDSA"}[key["kty"]]


def _checked(kid: str, material: Any, wrong: Callable[[str], InvalidArgument]) -> Key:
    """Return the key with the one algorithm that its type allows."""
    from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa

    match material:
        case bytes():
            if len(material) < SECRET_BYTES:
                raise wrong(f"the secret {kid!r} has {len(material)} bytes. Use at least {SECRET_BYTES}")
            return Key(kid, "HS256", material)
        case rsa.RSAPublicKey():
            if not MODULUS_BITS <= material.key_size <= MOST_MODULUS_BITS:
                raise wrong(
                    f"the key {kid!r} has {material.key_size} bits. Use {MODULUS_BITS} to {MOST_MODULUS_BITS}"
                )
            return Key(kid, "RS256", material)
        case ec.EllipticCurvePublicKey() if isinstance(material.curve, ec.SECP256R1):
            return Key(kid, "ES256", material)
        case ed25519.Ed25519PublicKey():
            return Key(kid, "EdDSA", material)
        case _:
            raise wrong(f"the key {kid!r} is private, or of a kind that is not taken")


class JwtVerifier:
    """Verifies tokens by the present keys. Verified tokens are remembered until the keys change.

    Args:
        keys: of the file. They take precedence over published ones of the same id.

    Attributes:
        wanted: set when a token names a missing key, so that the published keys are read again.
    """

    def __init__(
        self, keys: tuple[Key, ...], rules: JwtRules, now_s: Callable[[], float] = time.time
    ) -> None:
        self._rules = rules
        self._now_s = now_s
        self._known: RecentDict[bytes, Identity] = RecentDict(REMEMBERED)
        self._own = keys
        self._keys = {key.kid: key for key in keys}
        self.wanted = asyncio.Event()

    def publish(self, keys: tuple[Key, ...]) -> bool:
        """Trust these keys beside those of the file, and no others. Return whether that changed anything."""
        there = {key.kid: key for key in (*keys, *self._own)}
        if there == self._keys:
            return False
        former = self._keys  # an unchanged key stays the same object, so that its streams continue
        self._keys = {kid: former[kid] if former.get(kid) == key else key for kid, key in there.items()}
        self._known.clear()
        return True

    @property
    def own_ids(self) -> frozenset[str]:
        """Return the ids of the file's keys."""
        return frozenset(key.kid for key in self._own)

    def check(self, identity: Identity) -> None:
        """Check that a token's key is still trusted. Raises `Unauthenticated`."""
        proof = identity.proof
        if not isinstance(proof, Key) or self._keys.get(proof.kid) is not proof:
            raise Unauthenticated(_NOT_BELIEVED)

    def verify(self, text: str) -> Identity:
        """Verify a token. Raises `Unauthenticated`, with the same message for every fault of a signature."""
        digest = hashlib.sha256(text.encode()).digest()
        known = self._known.get(digest)
        if known is None:
            known = self._known[digest] = self._verify(text)
        if known.expires_at_s is not None and self._now_s() >= known.expires_at_s:
            raise Unauthenticated("the token has expired. Get a new one where you got it")
        return known

    def _verify(self, text: str) -> Identity:
        import jwt

        if len(text) > MOST_CHARS:
            raise Unauthenticated(f"the token has {len(text)} characters, and the maximum is {MOST_CHARS}")
        try:
            head = jwt.get_unverified_header(text)
        except jwt.PyJWTError:
            raise Unauthenticated("the token is none: neither an API token nor a JSON web token") from None
        if any(name in head for name in _FOREIGN_KEYS):
            raise Unauthenticated("the token brings keys of its own, which are not believed")
        key = self._key(head.get("kid"))
        if key is None or head.get("alg") != key.algorithm:
            raise Unauthenticated(_NOT_BELIEVED)
        rules = self._rules
        try:
            claims = jwt.decode(
                text,
                key.material,
                algorithms=[key.algorithm],
                issuer=rules.issuer,
                audience=rules.audience,
                options={
                    "require": ["exp", "sub"],
                    "verify_aud": True,  # a token for another audience is invalid, even if no audience is set
                    "verify_exp": False,  # by our clock, below
                    "verify_nbf": False,
                    "verify_iat": False,
                },
            )
        except jwt.InvalidIssuerError:
            raise Unauthenticated("the token is of another issuer than auth.issuer") from None
        except jwt.InvalidAudienceError:
            raise Unauthenticated("the token is for another audience than auth.audience") from None
        except jwt.PyJWTError:
            raise Unauthenticated(_NOT_BELIEVED) from None
        return self._identity(claims, key)

    def _key(self, kid: Any) -> Key | None:
        if kid is None:
            return next(iter(self._keys.values())) if len(self._keys) == 1 else None
        found = self._keys.get(kid) if isinstance(kid, str) else None
        if found is None:
            self.wanted.set()
            return self._keys.get("")  # the file's only key, which has no id
        return found

    def _identity(self, claims: Mapping[str, Any], key: Key) -> Identity:
        now, leeway = self._now_s(), self._rules.leeway_s
        end, begin, issued = claims["exp"], claims.get("nbf", 0), claims.get("iat")
        if not all(_is_time(each) for each in (end, begin, 0 if issued is None else issued)):
            raise Unauthenticated("the token's exp, nbf and iat are numbers")
        if now < begin - leeway:
            raise Unauthenticated("the token is not valid yet. Look at the clocks of both machines")
        # The original's tokens name their owner so. `sub` is always present.
        name, kind = claims.get("principal_name") or claims["sub"], claims.get("principal_type", "user")
        if not (isinstance(name, str) and name.isprintable() and 0 < len(name) <= 256):
            raise Unauthenticated(
                "the token names no principal: principal_name or sub has 1-256 printable characters"
            )
        if kind not in ("user", "service_account"):
            raise Unauthenticated("the token's principal_type is neither user nor service_account")
        try:
            scopes = named_scopes(claims)
        except ValueError as error:
            raise Unauthenticated(f"the token's {error}") from None
        return Identity(
            principal=Principal(name, kind),
            method="jwt",
            scopes=scopes,
            credential=str(claims.get("jti", ""))[:256],
            expires_at_s=end + leeway,  # `verify` looks at it each time
            issued_at_s=issued,
            proof=key,
        )


def _is_time(value: Any) -> bool:
    """Return whether a claim is a usable time. NaN would never expire, and numbers of hundreds of digits are no date."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < MOST_TIME_S


def web_tokens(settings: Auth) -> JwtVerifier | None:
    """Return the verifier of web tokens. None: not configured. Raises `InvalidArgument` if their keys are unusable."""
    if settings.mode == "off" or (settings.jwt_keys is None and settings.jwks_url is None):
        return None
    need_extra()
    if settings.jwks_ca is not None:
        _read(settings.jwks_ca, "auth.jwks_ca")
    own = (
        ()
        if settings.jwt_keys is None
        else read_keys(_read(settings.jwt_keys, "auth.jwt_keys"), where="auth.jwt_keys")
    )
    rules = JwtRules(issuer=settings.issuer, audience=settings.audience, leeway_s=settings.leeway)
    return JwtVerifier(own, rules)


def _read(path: Path, name: str) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise InvalidArgument(
            f"{name}: cannot read {path}: {error.strerror}", field=name, value=str(path)
        ) from None
