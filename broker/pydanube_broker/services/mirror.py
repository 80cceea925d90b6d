"""`danube.stream.Stream/Mirror` and `Mirrored`: the calls of a link to its source, both ends.

The source answers callers with the right `data:mirror`, topic by topic. `SourceCluster` is the calling end.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from google.protobuf.message import DecodeError
from pydanube_core.errors import ClusterError, InvalidArgument, PermissionDenied, TopicNotFound, Unavailable
from pydanube_core.generated import danube_stream_pb2 as pb
from pydanube_core.grpc_wire import Headers
from pydanube_core.http_hosts import is_loopback
from pydanube_core.links import MOST_PATTERNS, LinkRecord, source_urls
from pydanube_core.names import TopicName, check_subscription
from pydanube_core.security.api_tokens import is_any_token
from pydanube_core.security.records import decode_binding, decode_role, encode_binding, encode_role
from pydanube_core.services import STREAM
from pydanube_core.topic_pattern import TopicPattern

from pydanube_broker.cluster.records import DispatchStrategy, SubscriptionSpec, TopicRecord, TopicSettings
from pydanube_broker.cluster.subscription_operations import KEPT_OPTIONS, MOST_KEPT
from pydanube_broker.copying.messages import Answer, Round
from pydanube_broker.copying.source import MOST_FOLLOWED, Source
from pydanube_broker.copying.target import Answers, Wire
from pydanube_broker.links.grants import GrantTables, SourceGrants
from pydanube_broker.links.mirror import SourceSubject, SourceTopic
from pydanube_broker.links.run import Mirrored
from pydanube_broker.relay.link import Links, request_head
from pydanube_broker.relay.unary_call import ask
from pydanube_broker.rpc.caller import COLD_CALL
from pydanube_broker.rpc.hot import StreamReply
from pydanube_broker.schema.records import SubjectSpec, VersionSpec
from pydanube_broker.services.copy_stream import CopyStream, LinkWire, NoWire
from pydanube_broker.serving.registry import Registry
from pydanube_broker.serving.topic_access import Action, TopicAccess
from pydanube_broker.slices import Slices
from pydanube_broker.subscription.members import SubscriptionType
from pydanube_broker.subscription.subscription_policy import (
    SubscriptionPolicy,
    policy_options,
    stored_policy,
)
from pydanube_broker.topics.topic import Topic, now_ms
from pydanube_broker.worker_threads import WorkerThreads

MIRROR: Final = STREAM["Mirror"].path
MIRRORED: Final = STREAM["Mirrored"].path
MOST_FENCED: Final = 100
_ASK_S: Final = 10.0
_GRANT_BYTES: Final = 8192  # of a role's or a binding's record
_KEY: Final = "mirrored"  # stands for the store's key in errors of records


# -- the source ------------------------------------------------------------------------------------------------------


def mirror_stream(
    reply: StreamReply, access: TopicAccess, registry: Registry, worker_threads: WorkerThreads
) -> CopyStream:
    """Serve the copies of a broker of another cluster."""

    async def permit(request: Round) -> Topic:
        name = TopicName.parse(request.topic)
        access.check(reply, Action.MIRROR, name)
        record = registry.catalog.index.find_topic(name)
        if record is None or record.topic_id != request.topic_id:
            raise TopicNotFound(
                f"the source has no topic {name} with the id {request.topic_id}", value=str(name)
            )
        if not request.follow or record.dispatch_strategy is DispatchStrategy.NON_RELIABLE:
            raise InvalidArgument(f"{record.name} cannot be mirrored", field="topic", value=record.name)
        topic = registry.find(record.topic)
        if topic is None:
            raise registry.not_found(record.topic)
        return topic

    def open_source(*, send: Callable[[Answer], None], writable: Callable[[], bool]) -> Source:
        return Source(
            permit,
            worker_threads,
            send=send,
            writable=writable,
            most=MOST_FOLLOWED,
            check=lambda topic: access.check_again(reply, Action.MIRROR, topic),
        )

    return CopyStream(reply, open_source)


class MirroredService:
    """Answers `Mirrored`: lists topics, subjects and grants, or fences logs for a fail-over.

    `cluster` returns this cluster's name.
    """

    def __init__(
        self, access: TopicAccess, registry: Registry, cluster: Callable[[], str], grants: GrantTables
    ) -> None:
        self._grants = grants
        self._access = access
        self._registry = registry
        self._cluster = cluster

    async def call(self, data: bytes) -> bytes:
        """Handle a call: once a second of each broker of a link's cluster, mostly without a change since.

        Raises `PermissionDenied`: the caller may mirror nothing here.
        """
        request = pb.MirroredRequest.FromString(data)
        if request.HasField("fence"):
            fence = request.fence
            if len(fence.logs) > MOST_FENCED:
                raise InvalidArgument(
                    f"{len(fence.logs)} logs: at most {MOST_FENCED} are fenced by a call",
                    field="fence.logs",
                    value=len(fence.logs),
                )
            answer = pb.MirroredResponse(cluster=self._cluster())
            # Concurrently, so that the store commits many together.
            answer.fenced.extend(
                await asyncio.gather(
                    *(self._fenced(log.topic, log.topic_id, fence.cluster) for log in fence.logs)
                )
            )
            return answer.SerializeToString()
        if len(request.patterns) > MOST_PATTERNS:
            raise InvalidArgument(
                f"{len(request.patterns)} patterns: a link has at most {MOST_PATTERNS}",
                field="patterns",
                value=len(request.patterns),
            )
        patterns = [TopicPattern.parse(each, field="patterns") for each in request.patterns]
        for each in patterns:
            self._access.check_somewhere(COLD_CALL, Action.MIRROR, each.namespace)
        registry = self._registry
        coordinator, schemas = registry.ownership.coordinator, registry.schemas.registry
        state = f"{registry.ownership.me.broker_id}.{registry.ownership.incarnation}"
        state += f".{registry.catalog.records.revision}.{coordinator.changes}.{schemas.records.revision}"
        if request.roles:
            state += f".{self._grants.version}"
        answer = pb.MirroredResponse(state=state, cluster=self._cluster())
        if request.known == state:
            return answer.SerializeToString()
        if request.roles:
            answer.roles.CopyFrom(self._roles())
        slices, subjects = Slices(), set[str]()
        for name in sorted(self._access.names()):
            await slices()
            if (
                name.is_system
                or not any(each.matches(name) for each in patterns)
                or not self._access.may(COLD_CALL, Action.MIRROR, name)
            ):
                continue
            if (topic := self._topic(name)) is not None:
                answer.topics.append(topic)
                schema = TopicSettings.from_json(topic.settings, key=_KEY).schema
                subjects |= {str(schema["subject"])} if schema else set()
        for subject in sorted(subjects):
            if (known := schemas.index.find_subject(subject)) is not None:
                versions = [
                    pb.MirroredVersion(
                        spec=each.spec.to_json(), definition=each.definition, descriptors=each.descriptors
                    )
                    for each in schemas.index.versions(known.schema_id)
                ]
                answer.subjects.add(schema_id=known.schema_id, spec=known.spec.to_json(), versions=versions)
        return answer.SerializeToString()

    def _roles(self) -> pb.MirroredRoles:
        for permission in ("roles:read", "bindings:read"):
            try:
                self._access.check_cluster(COLD_CALL, permission)
            except PermissionDenied as error:
                return pb.MirroredRoles(refused=error.message)
        grants = self._grants
        if grants.version is None:
            return pb.MirroredRoles(refused="the source is starting")
        return pb.MirroredRoles(
            roles=map(encode_role, grants.roles), bindings=map(encode_binding, grants.bindings)
        )

    async def _fenced(self, log: str, topic_id: int, cluster: str) -> pb.FencedLog:
        """Refuse producers and consumers of a log from here on. Its end is that of everything that was ever acknowledged."""
        registry = self._registry
        try:
            name = TopicName.parse(log)
            self._access.check(COLD_CALL, Action.FENCE, name)
            topic = registry.known(name)
            if topic.topic_id != topic_id:
                raise TopicNotFound(f"{log} was deleted and made again since it was mirrored", value=log)
            await registry.catalog.fence(topic.options.parent or name, cluster, now_ms())
            registry.policies.apply(topic)
            await topic.settled()
            for listener in tuple(topic.listeners):
                listener.grew()  # a link sends its last marks
        except ClusterError as error:
            return pb.FencedLog(topic=log, why=error.message)
        return pb.FencedLog(topic=log, end=topic.commit)

    def _topic(self, name: TopicName) -> pb.MirroredTopic | None:
        index = self._registry.catalog.index
        record, parent = index.find_topic(name), index.partitioned(name)
        if record is not None:
            records, settings = [record], record.settings
        elif parent is not None:
            records, settings = list(index.partitions(name)), parent.spec.settings
        else:
            return None
        known: dict[str, SubscriptionSpec] = {}
        for each in records:
            known |= {one.name: one.spec for one in index.subscriptions(each.topic_id)}
        return pb.MirroredTopic(
            topic=str(name),
            partitioned=parent is not None,
            settings=settings.to_json(),
            partitions=[self._log(each) for each in records],
            subscriptions=[
                pb.MirroredSubscription(
                    name=one.name, type=one.type, options=json.dumps(dict(one.options)).encode()
                )
                for one in known.values()
            ],
        )

    def _log(self, record: TopicRecord) -> pb.Partition:
        owner = self._registry.ownership.owner(record.topic_id)
        return pb.Partition(
            topic=record.name,
            topic_id=record.topic_id,
            broker_url="" if owner is None else owner.broker_url,
        )


# -- the link --------------------------------------------------------------------------------------------------------


class SourceCluster:
    """The source of one link, as its brokers are reached (`links.run.Source`). Single user: the loop."""

    def __init__(self, links: Links, link: LinkRecord) -> None:
        self._links = links
        self._link = link
        self._urls = source_urls(link.source)

    def open_wire(self, url: str, answers: Answers) -> Wire:
        """Open a stream of copies to a broker of the source."""
        try:
            headers = self.headers(url, MIRROR)
        except ClusterError as error:
            answers.lost(error)
            return NoWire()
        return LinkWire(self._links, headers, url, answers)

    async def mirrored(self, known: str) -> Mirrored:
        """Return the list of the source, from the first broker that answers. Raises the last one's error."""
        request = pb.MirroredRequest(
            patterns=self._link.topics, known=known, roles=self._link.roles
        ).SerializeToString()
        failed: ClusterError | None = None
        for _ in tuple(self._urls):
            try:
                answer = await self._ask(self._urls[0], request)
            except Unavailable as error:
                failed = error
                self._urls.append(self._urls.pop(0))
            else:
                return decode_mirrored(answer, self._urls[0])
        assert failed is not None, "a link has an address"
        raise failed

    async def fence(self, url: str, cluster: str, logs: Mapping[str, int]) -> Mapping[str, int | str]:
        """Ask the owner of logs (name → id) to refuse their clients. Return for each log its end, or why it is not fenced.

        Raises `ClusterError`: the owner did not answer. It may have fenced them.
        """
        found: dict[str, int | str] = dict.fromkeys(logs, "the source's build does not fence")
        named = [pb.LogToFence(topic=log, topic_id=topic_id) for log, topic_id in logs.items()]
        for start in range(0, len(named), MOST_FENCED):
            fence = pb.Fence(cluster=cluster, logs=named[start : start + MOST_FENCED])
            request = pb.MirroredRequest(fence=fence).SerializeToString()
            try:
                answer = pb.MirroredResponse.FromString(await self._ask(url, request))
            except DecodeError as error:
                raise _unreadable(url, error) from error
            found |= {each.topic: each.end if each.HasField("end") else each.why for each in answer.fenced}
        return found

    async def _ask(self, url: str, request: bytes) -> bytes:
        try:
            async with asyncio.timeout(_ASK_S):
                return await ask(self._links, self.headers(url, MIRRORED), url, request)
        except TimeoutError:
            raise Unavailable(f"the broker at {url} has not answered for {_ASK_S:g} s", broker=url) from None

    def headers(self, url: str, path: str) -> Headers:
        """Return the head of a request. Raises `InvalidArgument`, `Unavailable`: the token cannot be sent."""
        parts = urlsplit(url)
        shown: Headers = ()
        if self._link.token_file is not None:
            if parts.scheme != "https" and not is_loopback(parts.hostname or ""):
                raise InvalidArgument(
                    f"link {self._link.name}: its token is not sent to {url} in plain text. Use danubes:// with TLS at the "
                    "source",
                    field="source",
                    value=url,
                )
            try:
                token = Path(self._link.token_file).read_text(encoding="utf-8").strip()
            except (OSError, UnicodeDecodeError) as error:
                raise Unavailable(
                    f"link {self._link.name}: its token file {self._link.token_file} cannot be read: {error}"
                ) from None
            if not is_any_token(token):
                # A link's maker chooses file and source, and would otherwise be sent any file of this machine.
                raise InvalidArgument(
                    f"link {self._link.name}: the file {self._link.token_file} holds no token. Write one token into it",
                    field="token_file",
                    value=self._link.token_file,
                )
            shown = ((b"authorization", f"Bearer {token}".encode()),)
        return (*request_head(url, path), *shown)


def decode_mirrored(data: bytes, url: str) -> Mirrored:
    """Return the list that a source has sent. Raises `Unavailable` if it cannot be read."""
    try:
        return _decode(pb.MirroredResponse.FromString(data))
    except (ClusterError, DecodeError, ValueError, TypeError, RecursionError) as error:
        raise _unreadable(url, error) from error


def _unreadable(url: str, error: Exception) -> Unavailable:
    return Unavailable(
        f"the answer of the broker at {url} cannot be read: {error!s:.200}. A source is a pydanube cluster of this version",
        broker=url,
    )


def _decode(answer: pb.MirroredResponse) -> Mirrored:
    topics = []
    for each in answer.topics:
        settings = TopicSettings.from_json(each.settings, key=_KEY)
        topics.append(
            SourceTopic(
                name=TopicName.parse(each.topic),
                partitioned=each.partitioned,
                reliable=settings.dispatch_strategy is DispatchStrategy.RELIABLE,
                policies=settings.policies,
                schema=settings.schema,
                options=settings.options,
                kept=_kept(settings.options),
                logs=tuple((one.topic, one.topic_id, one.broker_url) for one in each.partitions),
                subscriptions={
                    check_subscription(one.name): (SubscriptionType(one.type), _options(one.options))
                    for one in each.subscriptions
                },
            )
        )
    subjects = [
        SourceSubject(
            schema_id=each.schema_id,
            spec=SubjectSpec.from_json(each.spec, key=_KEY),
            versions=tuple(
                (
                    VersionSpec.from_json(one.spec, key=_KEY),
                    one.definition,
                    one.descriptors if one.HasField("descriptors") else None,
                )
                for one in each.versions
            ),
        )
        for each in answer.subjects
    ]
    grants = _decode_roles(answer.roles) if answer.HasField("roles") else None
    return Mirrored(
        state=answer.state, cluster=answer.cluster, topics=topics, subjects=subjects, grants=grants
    )


def _options(data: bytes) -> dict[str, Any]:
    """Return the options of a subscription. Raises if a broker could not serve one with them."""
    options: dict[str, Any] = dict(json.loads(data or b"{}"))
    SubscriptionPolicy.of(stored_policy(options), {})
    return options


def _kept(options: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """Return the policies that a topic keeps for subscriptions to come, as options of these. Raises as `_options`."""
    kept = dict(options.get(KEPT_OPTIONS, {}))
    if len(kept) > MOST_KEPT:
        raise ValueError(f"a topic keeps the policies of {len(kept)} subscriptions, at most {MOST_KEPT}")
    found = {check_subscription(name): stored_policy(dict(each)) for name, each in kept.items()}
    for policy in found.values():
        SubscriptionPolicy.of(policy, {})
    return {name: policy_options(policy) for name, policy in found.items()}


def _decode_roles(sent: pb.MirroredRoles) -> SourceGrants:
    """Return the roles and bindings of a source. Those of a newer or hostile source may not be readable."""
    try:
        if any(len(each) > _GRANT_BYTES for each in (*sent.roles, *sent.bindings)):
            raise ValueError(f"it has more than {_GRANT_BYTES} bytes")
        roles, bindings = [*map(decode_role, sent.roles)], [*map(decode_binding, sent.bindings)]
        texts = [text for role in roles for text in (role.name, *role.permissions)]
        for each in bindings:
            texts += [each.id, each.principal.name, each.principal.type, each.resource, *each.roles]
        if not all(isinstance(text, str) for text in texts):
            raise TypeError("it has a field of another type")
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        return SourceGrants(refused=f"this build cannot read one of them: {error!s:.200}")
    return SourceGrants(roles, bindings, sent.refused[:500])
