"""The index of lists of lag: after any changes, in any order, the subscriptions of the topics that are there, in order."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from pydanube_broker.cluster import keys
from pydanube_broker.cluster.ids import TopicId
from pydanube_broker.cluster.records import SubscriptionSpec, TopicSettings, TopicSpec
from pydanube_broker.cluster.registry_index import RegistryIndex
from pydanube_broker.records import Quarantine
from pydanube_core.list_keys import LagKey
from pydanube_core.names import TopicName
from pydanube_storage.metadata import KeyValue, Revision

NAMES = ("/a/t", "/a-b/t", "/a/t-part-0", "/a/t-part-10", "/a/t-part-2", "/a/u")
#: a topic by its number, made (again, as another) or deleted; a subscription of the topic that has an id
CHANGES = st.lists(
    st.tuples(
        st.sampled_from(["topic", "subscription"]), st.integers(0, 5), st.integers(0, 2), st.booleans()
    ),
    max_size=40,
)


@given(CHANGES)
def test_lag_keys_are_those_of_topics_that_are_there(changes: list[tuple[str, int, int, bool]]) -> None:
    index = RegistryIndex()
    topics: dict[int, TopicId] = {}
    subscriptions: set[tuple[TopicId, str]] = set()
    for revision, (kind, number, which, is_made) in enumerate(changes, start=1):
        name = TopicName.parse(NAMES[number])
        topic_id = TopicId(100 + number * 10 + which)
        if kind == "topic":
            key = keys.topic_key(name)
            spec = TopicSpec(
                name=str(name),
                created_at_ms=1,
                partition=name.partition,
                settings=TopicSettings(),
                identity=topic_id,
            )
            value = spec.to_json()
            if is_made:
                topics[number] = topic_id
            else:
                topics.pop(number, None)
        else:
            key = keys.subscription_key(topic_id, f"s{which}")
            value = SubscriptionSpec(
                name=f"s{which}", topic=str(name), type="shared", start_offset=0, created_at_ms=1
            ).to_json()
            (subscriptions.add if is_made else subscriptions.discard)((topic_id, f"s{which}"))
        table = index.topic_table if kind == "topic" else index.subscription_table
        if is_made:
            item = KeyValue(
                key=key, value=value, create_revision=Revision(revision), mod_revision=Revision(revision)
            )
            table.put(item, Quarantine())
        else:
            table.remove(key, Revision(revision))
        there = {
            number: sorted(name for owner, name in subscriptions if owner == topic_id)
            for number, topic_id in topics.items()
        }
        expected = [key for number, names in there.items() for key in _keys(NAMES[number], names)]
        assert index.lag_keys() == sorted(expected, key=lambda key: key.place)
        for number, name in enumerate(NAMES):
            own = [key for key in index.lag_keys() if key.log == name]
            parts = [] if number in there else [key for key in index.lag_keys() if key.topic == name]
            assert index.lag_keys(TopicName.parse(name)) == own + parts


def _keys(log: str, subscriptions: list[str]) -> list[LagKey]:
    name = TopicName.parse(log)
    return [LagKey(str(name.base), log, name.partition, subscription) for subscription in subscriptions]
