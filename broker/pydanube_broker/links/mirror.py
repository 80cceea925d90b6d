"""The decision of a link about each topic of its source. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final

from pydanube_core.errors import InvalidName
from pydanube_core.failure_policy import DEAD_LETTER_TOPIC
from pydanube_core.links import LINEAGE, LinkRecord, MirrorOf, StandingFacts, link_of
from pydanube_core.names import TopicName
from pydanube_core.topic_pattern import TopicPattern

from pydanube_broker.schema.records import SubjectSpec, VersionSpec
from pydanube_broker.subscription.subscription_policy import OPTION


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceTopic:
    """A topic of the source.

    Attributes:
        logs: (name, id, address of the owner) by partition, or the one of a plain topic.
        subscriptions: by name, type and options.
        kept: options of subscriptions that do not exist yet, by name: their failure policies.
    """

    name: TopicName
    partitioned: bool
    reliable: bool
    policies: Mapping[str, Any]
    schema: Mapping[str, Any] | None
    options: Mapping[str, Any]
    logs: Sequence[tuple[str, int, str]]
    subscriptions: Mapping[str, tuple[str, Mapping[str, Any]]]
    kept: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    @property
    def ids(self) -> tuple[int, ...]:
        return tuple(topic_id for _, topic_id, _ in self.logs)


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceSubject:
    """A subject of the source's registry. `versions`: records, definitions and descriptors."""

    schema_id: int
    spec: SubjectSpec
    versions: Sequence[tuple[VersionSpec, bytes, bytes | None]]


def mirror_name(link: LinkRecord, name: TopicName) -> TopicName:
    """Return the name of a topic's mirror. Raises `InvalidName`: with the link's prefix it is none."""
    return TopicName.parse(f"/{name.namespace}/{link.rename}{name.name}")


def mirrored_options(link: LinkRecord, topic: TopicName, options: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the options here of a subscription of a source's topic.

    Its dead letters go to the mirror of the source's dead-letter topic. If the link does not mirror that one, they go to the
    default topic, because the source could name any topic of this cluster. The system namespace is never mirrored.
    """
    policy = dict(options.get(OPTION, {}))
    if (named := policy.pop(DEAD_LETTER_TOPIC, None)) is None:
        return options
    name = TopicName.parse(named)
    with suppress(InvalidName):  # too long with the prefix
        is_mirrored = any(TopicPattern.parse(each).matches(name) for each in link.topics)
        if is_mirrored and name.base != topic.base and not name.is_system:
            policy[DEAD_LETTER_TOPIC] = str(mirror_name(link, name))
    return {**options, OPTION: policy}


def why_left_out(topic: SourceTopic) -> str | None:
    """Return why a topic of the source is never mirrored, None if it is."""
    if not topic.reliable:
        return "it is non_reliable: it stores no messages that could be copied"
    if (link := link_of(topic.options)) is not None:
        return f"it is itself a mirror, of the link {link}"
    if topic.name.is_system:
        return "it belongs to its cluster's own namespace"
    names = [name for name, _, _ in topic.logs]
    if not topic.partitioned and names != [str(topic.name)]:
        return "its log has another name"
    if topic.partitioned and names != [str(topic.name.part(index)) for index in range(len(names))]:
        return "its partitions are not numbered from 0 without a gap"
    return None


def remade(source: str, mirror: str) -> str:
    return (
        f"{source} was deleted and made again at the source, so its messages differ. The mirror keeps its messages. "
        f"Fail over to it, or delete {mirror}, and it is copied again"
    )


LEFT_OUT: Final = "left_out"
NAME_TAKEN: Final = "name_taken"
FAILED_OVER: Final = "failed_over"
SOURCE_REMADE: Final = "source_remade"
SOURCE_DELETED: Final = "source_deleted"
COPYING: Final = "copying"


def standing_of(
    link: LinkRecord, cluster: str, topic: SourceTopic, present: Mapping[str, Any] | None
) -> StandingFacts:
    """Decide about one topic of the source.

    Args:
        cluster: the source's name.
        present: options of the topic that has the mirror's name here, None if there is none.
    """
    source, name = str(topic.name), None

    def standing(state: str, why: str | None = None) -> StandingFacts:
        return StandingFacts(topic=source, mirror=name, state=state, why=why)

    if (why := why_left_out(topic)) is not None:
        return standing(LEFT_OUT, why)
    try:
        name = str(mirror_name(link, topic.name))
    except InvalidName as error:
        return standing(LEFT_OUT, error.message)
    if present is None:
        return standing(COPYING)
    mark = MirrorOf.of(present)
    if mark is None:
        if any(each.get("link") == link.name for each in present.get(LINEAGE, ())):
            return standing(FAILED_OVER, "it was failed over, and its producers write here")
        return standing(
            NAME_TAKEN,
            f"{name} exists here and is no mirror: delete it, or give the link a prefix with --rename",
        )
    if (mark.link, mark.cluster, mark.topic) != (link.name, cluster, source):
        return standing(
            NAME_TAKEN, f"{name} is the mirror of {mark.topic} in {mark.cluster}, by the link {mark.link}"
        )
    if mark.ids != topic.ids[: len(mark.ids)]:
        return standing(SOURCE_REMADE, remade(source, name))
    return standing(COPYING)
