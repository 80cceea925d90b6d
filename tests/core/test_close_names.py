"""What may have been meant: found among many, at a cost that does not grow with them."""

import difflib

import pytest
from pydanube_core import spelling
from pydanube_core.names import TopicName
from pydanube_core.spelling import TopicNames, close_names


def test_one_wrong_letter_is_found_among_ten_thousand() -> None:
    names = [f"/default/orders-{number}-eu" for number in range(10_000)]
    assert "/default/orders-77-eu" in close_names("/default/order-77-eu", names)
    assert "/default/orders-123-eu" in close_names("/default/orders-123-ue", names)


def test_few_names_are_compared_however_many_there_are(monkeypatch: object) -> None:
    compared: list[int] = []
    plain = difflib.get_close_matches

    def counting(word: str, names: list[str], *, n: int, cutoff: float) -> list[str]:
        compared.append(len(names))
        return plain(word, names, n=n, cutoff=cutoff)

    monkeypatch.setattr(difflib, "get_close_matches", counting)
    assert close_names("x" * 30, ["x" * 29 + str(number % 10) for number in range(10_000)])
    assert compared == [n for n in compared if n <= spelling.MOST_COMPARED]


def test_of_long_names_fewer_are_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where one letter is repeated each comparison goes through all pairs of letters: that is what is bounded."""
    compared: list[int] = []
    monkeypatch.setattr(
        difflib, "get_close_matches", lambda word, names, n, cutoff: compared.extend(map(len, names))
    )
    for length in (10, 100, 199, 256):
        compared.clear()
        close_names("n" * length, ["n" * (length - 1) + chr(97 + number % 26) for number in range(5000)])
        assert compared
        assert sum(compared) * length <= 2 * spelling.MOST_STEPS


def test_an_empty_name_and_no_names_give_nothing() -> None:
    assert close_names("", [f"t{number}" for number in range(1000)]) == []
    assert close_names("orders", []) == []


def topic_names(*names: str) -> TopicNames:
    found = TopicNames()
    for name in names:
        found.add(name)
    return found


def test_a_topic_is_compared_by_its_name_and_not_by_its_namespace() -> None:
    known = topic_names("/default/orders", "/default/few", "/shop/nowhere")
    assert known.close(TopicName.parse("/default/ordres")) == ["/default/orders"]
    assert known.close(TopicName.parse("/default/nowhere")) == ["/shop/nowhere"]
    assert known.close(TopicName.parse("/default/x")) == []


@pytest.mark.parametrize("wrong", ["orders-4321-au", "ordres-4321-eu", "rders-4321-eu", "orders-4321-eur"])
def test_a_topic_is_found_among_ten_thousand_and_few_are_compared(
    monkeypatch: pytest.MonkeyPatch, wrong: str
) -> None:
    known = topic_names(*(f"/{space}/orders-{number}-eu" for space in ("a", "b") for number in range(5000)))
    compared: list[int] = []
    plain = difflib.get_close_matches

    def counting(word: str, names: list[str], *, n: int, cutoff: float) -> list[str]:
        compared.append(len(names))
        return plain(word, names, n=n, cutoff=cutoff)

    monkeypatch.setattr(difflib, "get_close_matches", counting)
    assert "/a/orders-4321-eu" in known.close(TopicName.parse(f"/a/{wrong}"))
    assert compared == [n for n in compared if n <= 4 * spelling.BESIDE]


def test_a_topic_that_went_is_not_named_and_one_that_is_there_twice_is_named_once() -> None:
    known = topic_names("/default/orders", "/default/order", "/default/orders")
    known.discard("/default/order")
    known.discard("/default/never")
    assert known.close(TopicName.parse("/default/ordres")) == ["/default/orders"]
    known.discard("/default/orders")
    assert known.close(TopicName.parse("/default/ordres")) == []
