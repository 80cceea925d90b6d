"""Token scopes: which one a permission needs, and which ones a token names."""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pydanube_core.security.scopes import ADMIN, DATA, READ, SCOPES, WRITE, named_scopes, scope_of, scopes_of

AREAS = ("topics", "data", "security", "journal")
VERBS = ("read", "change", "describe", "produce", "look_up")
CONCRETE = [f"{area}:{verb}" for area in AREAS for verb in VERBS]
WORDS = st.sampled_from([*SCOPES, "openid", "danube:reads", "danube"])


@pytest.mark.parametrize(
    ("permissions", "scopes"),
    [
        ([], set()),
        (["topics:read"], {READ}),
        (["topics:change", "topics:read"], {READ, WRITE}),
        (["data:look_up"], {READ}),
        (["data:produce"], {DATA}),
        (["data:consume"], {DATA}),
        (["data:mirror"], {WRITE}),
        (["security:change"], {ADMIN}),
        (["topics:*"], {READ, WRITE}),
        (["security:*"], {READ, ADMIN}),
        (["data:*"], {READ, DATA, WRITE}),
        (["*:read"], set(SCOPES)),
        (["topics:read", "*"], set(SCOPES)),
    ],
)
def test_permissions_need_exactly_these_scopes(permissions: list[str], scopes: set[str]) -> None:
    assert scopes_of(permissions) == scopes


@given(st.lists(st.sampled_from([*CONCRETE, *(f"{area}:*" for area in AREAS), "*:read", "*"]), max_size=3))
def test_the_scopes_of_permissions_are_enough_for_everything_that_they_allow(permissions: list[str]) -> None:
    allowed = {one for one in CONCRETE if any(fnmatchcase(one, each) for each in permissions)}
    assert {scope_of(one) for one in allowed} <= scopes_of(permissions)


#: a claim of a token, and the words that it names. None: it is malformed
CLAIMS = (
    st.lists(WORDS, max_size=3).map(lambda words: (" ".join(words), words))
    | st.lists(WORDS, max_size=3).map(lambda words: (list(words), words))
    | st.sampled_from([(7, None), (None, None), ({"a": 1}, None), ([READ, 7], None)])
)


@given(st.dictionaries(st.sampled_from(["scope", "scp", "sub"]), CLAIMS, max_size=3))
@example({"scp": ([READ], [READ])})
@example({"scope": ("", [])})
@example({"sub": ("ann", [])})
def test_a_token_has_the_scopes_of_ours_that_it_names_and_no_others(
    claims: dict[str, tuple[Any, list[str] | None]],
) -> None:
    """Only a token without the claim has all of them: an empty claim names none."""
    named = [words for name, (_, words) in claims.items() if name != "sub"]
    shown = {name: value for name, (value, _) in claims.items()}
    if None in named:
        with pytest.raises(ValueError, match="scope"):
            named_scopes(shown)
    elif not named:
        assert named_scopes(shown) is None
    else:
        words_of_all = frozenset(word for words in named for word in words or ())
        assert named_scopes(shown) == words_of_all & frozenset(SCOPES)
