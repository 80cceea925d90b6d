"""The error for a topic that does not exist, with suggestions."""

from __future__ import annotations

from collections.abc import Sequence

from pydanube_core.errors import ClusterError, TopicNotFound
from pydanube_core.names import TopicName


def unknown_topic(name: TopicName, close: Sequence[str]) -> ClusterError:
    """Return the error. `close`: topics with similar names, best first."""
    hint = f"; did you mean {close[0]}?" if close else ""
    error = TopicNotFound(
        f"topic {name} does not exist{hint}", field="topic", value=str(name), similar=list(close)
    )
    for other in close:
        error.suggest(
            "topics.describe",
            tool="describe_topic",
            command=f"danube topics describe {other}",
            arguments={"topic": other},
            why="a topic spelled alike",
        )
    return error.suggest(
        "topics.create",
        tool="create_topic",
        command=f"danube topics create {name}",
        arguments={"topic": str(name)},
        why="creates it, if the name is meant so" if close else "creates it",
    )
