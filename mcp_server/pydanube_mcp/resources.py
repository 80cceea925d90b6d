"""Topics, subscriptions and brokers as MCP resources, with completion of their names.

    danube://topic/{namespace}/{topic}                          topics.describe
    danube://subscription/{namespace}/{topic}/{subscription}    subscriptions.lag
    danube://broker/{broker_id}                                 brokers.status
    danube://schema/{subject}                                   schemas.get
    danube://alerts                                             alerts.list, and can be subscribed to
    danube://metrics                                            cluster.metrics
    danube://docs/{page}                                        a page of the documentation, Markdown
    danube://operation/{name}                                   an operation, with the schemas of arguments and answer

With several clusters each takes `?cluster=NAME`. Completion reads the lists of operations and omits clusters
that it cannot reach, because a client's drop-down has no place for an error.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import parse_qs, unquote, urlsplit

from mcp import MCPError
from mcp.server.lowlevel.helper_types import ReadResourceContents
from mcp.types import INTERNAL_ERROR, INVALID_PARAMS, Completion, Resource, ResourceTemplate
from pydanube_admin.registry import OPERATIONS
from pydanube_admin.remote import OpsClient
from pydanube_admin.wording.pages import SHIPPED, page_text
from pydanube_core.errors import ClusterError, InvalidArgument, TopicNotFound
from pydanube_core.names import TopicName
from pydanube_core.spelling import close_names

from pydanube_mcp.clusters import Clusters
from pydanube_mcp.fencing import fenced, is_plain
from pydanube_mcp.narrowing import current_narrowing
from pydanube_mcp.presenting import Asked, body_of, flow_label
from pydanube_mcp.profiles import CLUSTER, Profile
from pydanube_mcp.tools import answer_schema

MAX_COMPLETIONS: Final = 100  # the protocol's limit
JSON_TYPE: Final = "application/json"
MARKDOWN_TYPE: Final = "text/markdown"
PAGE: Final = "danube://docs/"
OPERATION: Final = "danube://operation/"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Template:
    kind: str
    parts: tuple[str, ...]
    title: str
    description: str
    operation: str
    arguments: Callable[..., dict[str, Any]]  # from the parts, by name

    @property
    def uri(self) -> str:
        return f"danube://{self.kind}" + "".join(f"/{{{part}}}" for part in self.parts)


_TEMPLATES: Final = (
    _Template(
        kind="broker",
        parts=("broker_id",),
        title="Broker",
        description="The broker, as get_broker_status shows it",
        operation="brokers.status",
        arguments=lambda broker_id: {"broker_id": broker_id},
    ),
    _Template(
        kind="schema",
        parts=("subject",),
        title="Schema",
        description="The latest version of a subject, as get_schema shows it",
        operation="schemas.get",
        arguments=lambda subject: {"subject": subject},
    ),
    _Template(
        kind="subscription",
        parts=("namespace", "topic", "subscription"),
        title="Subscription",
        description="How far one subscription is behind, as get_consumer_lag shows it",
        operation="subscriptions.lag",
        arguments=lambda namespace, topic, subscription: {
            "topic": f"/{namespace}/{topic}",
            "subscription": subscription,
            "limit": 1000,
        },
    ),
    _Template(
        kind="topic",
        parts=("namespace", "topic"),
        title="Topic",
        description="One topic, as describe_topic shows it",
        operation="topics.describe",
        arguments=lambda namespace, topic: {"topic": f"/{namespace}/{topic}"},
    ),
)

_FIXED: Final = (
    _Template(
        kind="alerts",
        parts=(),
        title="Alerts",
        description="Present alerts, as list_alerts shows them. Clients may subscribe to it",
        operation="alerts.list",
        arguments=dict,
    ),
    _Template(
        kind="metrics",
        parts=(),
        title="Metrics",
        description="Counts and rates of the cluster, as get_cluster_metrics shows them",
        operation="cluster.metrics",
        arguments=dict,
    ),
)


def _offered(templates: Iterable[_Template]) -> Iterable[_Template]:
    """Return the templates whose operation is available at the address of the request."""
    narrowing = current_narrowing.get()
    return (each for each in templates if narrowing.has(OPERATIONS[each.operation]))


def resource_list(clusters: Clusters) -> list[Resource]:
    """Return the resources without parts. With several clusters there is one for each."""
    return [
        Resource(
            uri=each.uri + query,
            name=each.kind + (f" of {cluster}" if cluster else ""),
            title=each.title,
            description=each.description,
            mime_type=JSON_TYPE,
        )
        for each in _offered(_FIXED)
        for query, cluster in (
            [(f"?{CLUSTER}={name}", name) for name in clusters.names] if clusters.several else [("", "")]
        )
    ]


def template_list(clusters: Clusters) -> list[ResourceTemplate]:
    query = f"{{?{CLUSTER}}}" if clusters.several else ""
    return [
        ResourceTemplate(
            uri_template=template.uri + query,
            name=template.kind,
            title=template.title,
            description=template.description,
            mime_type=JSON_TYPE,
        )
        for template in _offered(_TEMPLATES)
    ] + [
        ResourceTemplate(
            uri_template=PAGE + "{page}",
            name="docs",
            title="Documentation",
            description="A page of the documentation of this version",
            mime_type=MARKDOWN_TYPE,
        ),
        ResourceTemplate(
            uri_template=OPERATION + "{operation}",
            name="operation",
            title="Operation",
            description="An operation, with the schemas of its arguments and its answer",
            mime_type=JSON_TYPE,
        ),
    ]


def read_page(uri: str) -> str:
    """Return a page of the documentation. Raises MCPError -32602 if there is none of that name."""
    page = uri.removeprefix(PAGE)
    if page not in SHIPPED:
        close = close_names(page[:64], SHIPPED)
        message = f"there is no such page. There are {', '.join(SHIPPED)}"
        data = fenced({"uri": uri[:200], "did_you_mean": [PAGE + each for each in close]})
        raise MCPError(code=INVALID_PARAMS, message=message, data=data)
    return page_text(page)


def read_operation(uri: str) -> str:
    """Return an operation with its schemas. Raises MCPError -32602 if there is none of that name."""
    name = uri.removeprefix(OPERATION)
    operation = OPERATIONS.get(name)
    if operation is None:
        close = close_names(name[:64], OPERATIONS)
        data = fenced({"uri": uri[:200], "did_you_mean": [OPERATION + each for each in close]})
        raise MCPError(code=INVALID_PARAMS, message="there is no such operation", data=data)
    shown = {
        "operation": operation.name,
        "tool": operation.tool,
        "effect": operation.effect.value,
        "summary": operation.summary,
        "arguments": operation.input_schema,
        "answer": answer_schema(operation),
    }
    return json.dumps(shown, ensure_ascii=False, separators=(",", ":"))


async def read_resource(clusters: Clusters, uri: str, *, principal: str | None) -> ReadResourceContents:
    """Return the resource as JSON text, with the label of a result.

    Raises:
        MCPError: -32602 if there is no such resource, -32603 if it cannot be read now. `data` has the URI and
            our error object.
    """
    arguments: dict[str, Any] = {}
    try:
        template, parts, query = _parse(uri)
        arguments = template.arguments(**parts)
        client, _, _ = clusters.pick(query)
        current_narrowing.get().check(OPERATIONS[template.operation], arguments)
        result = await client.call(template.operation, arguments, principal=principal)
    except ClusterError as error:
        code = INTERNAL_ERROR if error.retryable else INVALID_PARAMS
        given = {**arguments, "uri": [uri, *map(unquote, uri.split("/"))]}
        data = fenced({"uri": uri, "error": error.to_dict()}, given=given)
        raise MCPError(code=code, message=data["error"]["message"], data=data) from error
    asked = Asked(
        operation=OPERATIONS[template.operation],
        arguments=arguments,
        profile=Profile.DEFAULT,
    )
    body = body_of(result, asked)
    text = json.dumps(body, ensure_ascii=False, separators=(",", ":"))
    return ReadResourceContents(content=text, mime_type=JSON_TYPE, meta=flow_label(body))


def _parse(uri: str) -> tuple[_Template, dict[str, str], dict[str, str]]:
    """Return the template of a URI, its parts by name, and its query."""
    try:
        split = urlsplit(uri)
    except ValueError:
        split = urlsplit("")
    values = [unquote(part) for part in split.path.removeprefix("/").split("/")] if split.path else []
    for template in (*_TEMPLATES, *_FIXED):
        if split.scheme == "danube" and split.netloc == template.kind and len(values) == len(template.parts):
            query = {name: given[0] for name, given in parse_qs(split.query).items()}
            return template, dict(zip(template.parts, values, strict=True)), query
    raise InvalidArgument(
        f"there is no resource {uri[:200]}. There are {', '.join(each.uri for each in (*_TEMPLATES, *_FIXED))}",
        field="uri",
        value=uri[:200],
    )


async def complete(clusters: Clusters, name: str, prefix: str, given: Mapping[str, str]) -> Completion:
    """Return values that the part `name` of a template may have, given the values of other parts."""
    try:
        names = await _names(clusters, name, prefix, given)
    except ClusterError:
        names = []
    return completion(value for value in names if value.startswith(prefix))


def completion(hits: Iterable[str]) -> Completion:
    """Return the hits, sorted. Names that could be sentences are left out, because a completion may enter a prompt."""
    plain = sorted({hit for hit in hits if is_plain(hit)})
    return Completion(values=plain[:MAX_COMPLETIONS], total=len(plain), has_more=len(plain) > MAX_COMPLETIONS)


async def complete_topic(clusters: Clusters, prefix: str) -> Completion:
    """Return topics of the first cluster by their full names, for arguments of prompts."""
    try:
        answer = await _listed(clusters.named(clusters.names[0]), "topics.list", {"limit": 1000})
    except ClusterError:
        return completion(())
    names = (item["topic"] for item in answer["items"])
    return completion(
        name for name in names if name.startswith(prefix) or name.rpartition("/")[2].startswith(prefix)
    )


async def _listed(client: OpsClient, operation: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Call a list operation. Raises the error for one that is not available at the address of the request."""
    current_narrowing.get().check(OPERATIONS[operation], dict(arguments))
    return await client.call(operation, arguments)


async def _names(clusters: Clusters, name: str, prefix: str, given: Mapping[str, str]) -> list[str]:
    if name == CLUSTER:
        return list(clusters.names)
    if name == "page":
        return list(SHIPPED)
    if name == "operation":
        return list(OPERATIONS)
    client, _, _ = clusters.pick({CLUSTER: given.get(CLUSTER)})
    page: dict[str, Any] = {"limit": 1000}
    match name:
        case "broker_id":
            return [item["broker_id"] for item in (await _listed(client, "brokers.list", page))["items"]]
        case "subject":
            return [item["subject"] for item in (await _listed(client, "schemas.list", page))["items"]]
        case "subscription" if "topic" in given:
            name = given["topic"]
            topic = name if name.startswith("/") else f"/{given.get('namespace', 'default')}/{name}"
            try:
                listed = await _listed(client, "subscriptions.list", page | {"topic": topic})
            except TopicNotFound:
                return []
            return [item["subscription"] for item in listed["items"]]
        case "topic" | "namespace":
            if "namespace" in given:
                page["namespace"] = given["namespace"]
            names = [
                TopicName.parse(item["topic"])
                for item in (await _listed(client, "topics.list", page))["items"]
            ]
            return [topic.name if name == "topic" else topic.namespace for topic in names]
        case _:
            return []
