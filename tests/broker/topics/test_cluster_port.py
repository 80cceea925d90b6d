"""The three parts of the port say who can answer, so that a cluster can route by them."""

from __future__ import annotations

import inspect

from pydanube_broker.port import BrokerPort
from pydanube_core.cluster_port import ClusterPort, EachBrokerPort, MetadataPort, TopicPort

PARTS = (MetadataPort, TopicPort, EachBrokerPort)


def methods_of(part: type) -> set[str]:
    return {name for name in vars(part) if not name.startswith("_")}


def test_every_method_is_in_exactly_one_part() -> None:
    everything = [name for part in PARTS for name in methods_of(part)]
    assert len(everything) == len(set(everything))
    assert methods_of(ClusterPort) == {"this"}, "the port of the one broker behind it"


def test_what_goes_to_an_owner_names_the_topic_first() -> None:
    for name in methods_of(TopicPort):
        first = list(inspect.signature(getattr(TopicPort, name)).parameters.values())[1]
        assert (first.name, first.annotation) == ("topic", "str"), name


def test_broker_answers_with_the_parameters_of_the_port() -> None:
    for part in PARTS:
        methods = {name for name in methods_of(part) if callable(getattr(part, name))}
        assert methods
        for name in methods:
            asked = inspect.signature(getattr(part, name)).parameters.values()
            answered = inspect.signature(getattr(BrokerPort, name)).parameters.values()
            assert [(each.name, each.kind) for each in asked] == [
                (each.name, each.kind) for each in answered
            ], name
