"""Where the topics are of ids that other brokers know.

Health checks and `ReceiveMessages` carry an id and no name. Of producers and consumers whose topic has left this broker,
or was somewhere else when they were made through this one, the topic is remembered, within bounds, and said to the broker
that such a call is relayed to. Where it is not, a client in proxy mode says which broker it means (`x-danube-broker-url`, docs/research/data-plane.md#62-proxy-mode).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final
from urllib.parse import unquote

from pydanube_core.errors import NoOwner, NotOwner
from pydanube_core.names import TopicName

from pydanube_broker.relay.membership import TOPIC
from pydanube_broker.rpc.caller import Called
from pydanube_broker.serving.ownership import Ownership
from pydanube_broker.serving.topic_access import TopicAccess
from pydanube_broker.topics.topic import Topic

REMEMBERED: Final = 100_000
_MEANT: Final = "x-danube-broker-url"


class Whereabouts:
    """See the module. Single user: the loop."""

    def __init__(self, access: TopicAccess, ownership: Ownership) -> None:
        self._access = access
        self._ownership = ownership
        self._topics: OrderedDict[int, TopicName] = OrderedDict()

    def left(self, number: int, topic: Topic) -> None:
        """An id is not known here any more; remembered where that is because its topic has left."""
        if isinstance(topic.closed, (NotOwner, NoOwner)):
            self._note(number, topic.options.topic)

    @contextmanager
    def noting(self, number: int, name: TopicName) -> Iterator[None]:
        """For making a producer or consumer of that id: another broker may be the one that makes it."""
        try:
            yield
        except (NotOwner, NoOwner):
            self._note(number, name)
            raise

    def check(self, called: Called, number: int) -> None:
        """Raise `NotOwner` or `NoOwner` where an id that is not known here belongs to another broker's topic."""
        if not self._ownership.several:
            return
        metadata = dict(called.caller.metadata)
        said = metadata.get(TOPIC)
        name = TopicName.parse(unquote(said)) if isinstance(said, str) else self._topics.get(number)
        if name is not None:
            error = self._access.elsewhere(name)
            if error is not None:
                raise error
            return
        meant = metadata.get(_MEANT)
        if isinstance(meant, str):
            self._check_meant(meant.rstrip("/"))

    def _check_meant(self, url: str) -> None:
        me = self._ownership.me
        if url != me.broker_url and any(each.broker_url == url for each in self._ownership.members()):
            raise NotOwner(f"the call is for the broker at {url}", broker_url=url, retry_after_ms=100)

    def _note(self, number: int, name: TopicName) -> None:
        self._topics[number] = name
        self._topics.move_to_end(number)
        if len(self._topics) > REMEMBERED:
            self._topics.popitem(last=False)
