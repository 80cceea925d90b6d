"""`danube cluster compare`: what two clusters have been told differently, read from both and laid side by side.

The command reads both. A broker dials no cluster that a client names, and `clusters.toml` is the user's.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Final

import anyio
from pydanube_core.errors import ClusterError, InvalidArgument
from pydanube_core.units import counted

from pydanube_cli.clusters import find_cluster
from pydanube_cli.command import Common, command
from pydanube_cli.parameters import argument
from pydanube_cli.render import print_json, print_table
from pydanube_cli.runtime import run_async

if TYPE_CHECKING:
    from pydanube_admin.remote import OpsClient

PAGE: Final = 1000
AT_ONCE: Final = 8  # calls to one cluster, so that its other work goes on
MOST_TOPICS: Final = 10_000  # each is a call: about a minute
#: Settings that are of one broker or one place, and differ between any two
OWN: Final = frozenset({"data.dir", "metadata.url"})
OWN_SECTION: Final = "server."
TOPIC_FIELDS: Final = (
    "partitions",
    "dispatch_strategy",
    "durability",
    "policies",
    "kept_failure_policies",
    "schema",
)

Dump = dict[tuple[str, str], dict[str, Any]]  # by kind and name


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """One of the two clusters."""

    name: str
    ops: OpsClient

    async def call(self, operation: str, **arguments: Any) -> Any:
        try:
            return await self.ops.call(operation, arguments)
        except ClusterError as error:
            if error.code == "NOT_IMPLEMENTED" or error.details.get("field") == "operation":
                raise self.other_format(operation) from error
            raise

    async def pages(self, operation: str) -> AsyncIterator[dict[str, Any]]:
        page: str | None = None
        while True:
            answer = await self.call(operation, limit=PAGE, **({} if page is None else {"page": page}))
            for item in answer["items"]:
                yield item
            page = answer["next_page"]
            if page is None:
                return

    def other_format(self, operation: str) -> InvalidArgument:
        return InvalidArgument(
            f"{self.name} answers {operation} in the format of another version: compare with the `danube` of its "
            "version, or upgrade it",
            field="other",
            value=self.name,
        )


async def dumped(side: Side) -> Dump:
    """Read all that a cluster has been told: settings, policies, schemas and rights.

    Raises:
        InvalidArgument: the cluster answers in another format, or has too many topics.
    """
    operation = "brokers.config"
    dump: Dump = {}
    try:
        for each in (await side.call(operation))["settings"]:
            if each["name"] not in OWN and not each["name"].startswith(OWN_SECTION):
                dump["setting", each["name"]] = {"value": each["value"]}
        operation = "namespaces.list"
        async for each in side.pages(operation):
            dump["namespace", each["namespace"]] = {"policies": each["policies"]}
        operation = "roles.list"
        async for each in side.pages(operation):
            dump["role", each["role"]] = {"permissions": sorted(each["permissions"])}
        operation = "bindings.list"
        async for each in side.pages(operation):
            fields = ("principal_type", "principal", "scope", "resource")
            dump["binding", each["binding"]] = {
                **{field: each[field] for field in fields},
                "roles": sorted(each["roles"]),
            }
        operation = "quotas.list"
        async for each in side.pages(operation):
            if each["limits"] or each["warnings"]:
                dump["quota", f"{each['kind']} {each['name']}"] = {
                    "limits": each["limits"],
                    "warnings": each["warnings"],
                }
        operation = "schemas.list"
        subjects = [each async for each in side.pages(operation) if each["latest_version"] is not None]
        operation = "topics.list"
        topics = [each["topic"] async for each in side.pages(operation)]
        if len(topics) > MOST_TOPICS:
            raise InvalidArgument(
                f"{side.name} has {len(topics)} topics, more than the {MOST_TOPICS} that are compared; compare "
                "its configuration where it is declared",
                field="other",
                value=side.name,
            )

        async def schema(listed: Mapping[str, Any]) -> None:
            latest = await side.call("schemas.get", subject=listed["subject"])
            dump["schema", listed["subject"]] = {
                "schema_type": latest["schema_type"],
                "fingerprint": latest["fingerprint"],
                "compatibility_mode": listed["compatibility_mode"],
                "transitive": listed["transitive"],
            }

        async def topic(name: str) -> None:
            found = await side.call("topics.describe", topic=name)
            dump["topic", name] = {field: found[field] for field in TOPIC_FIELDS}

        operation = "schemas.get"
        await _each(schema, subjects)
        operation = "topics.describe"
        await _each(topic, topics)
    except (KeyError, TypeError) as error:
        raise side.other_format(operation) from error
    return dump


async def _each(read: Callable[[Any], Awaitable[None]], wanted: list[Any]) -> None:
    """Read each, a few at once. What was deleted since it was listed is left out."""
    waiting = iter(wanted)

    async def reader() -> None:
        for one in waiting:
            try:
                await read(one)
            except ClusterError as error:
                if error.code not in ("TOPIC_NOT_FOUND", "SCHEMA_NOT_FOUND"):
                    raise

    try:
        async with anyio.create_task_group() as group:
            for _ in range(AT_ONCE):
                group.start_soon(reader)
    except BaseExceptionGroup as failed:
        raise failed.exceptions[0] from None


def differing(here: Dump, there: Dump) -> list[dict[str, Any]]:
    """Return what differs, by kind and name: on each side the fields that differ, or None where it is missing."""
    found = []
    for kind, name in sorted(here.keys() | there.keys()):
        one, other = here.get((kind, name)), there.get((kind, name))
        if one == other:
            continue
        if one is not None and other is not None:
            fields = sorted(
                field for field in one.keys() | other.keys() if one.get(field) != other.get(field)
            )
            one, other = ({field: side.get(field) for field in fields} for side in (one, other))
        found.append({"kind": kind, "name": name, "here": one, "there": other})
    return found


@command(examples=["danube cluster compare prod", "danube cluster compare prod --cluster staging --json"])
def compare(
    *,
    common: Common,
    other: Annotated[str, argument(metavar="OTHER", help="A cluster of ~/.config/danube/clusters.toml.")],
) -> None:
    """Compare settings, policies, schemas and rights with another cluster; secrets by a hash.

    Of settings, those of the broker that answers, without its addresses and places.
    """
    from pydanube_admin.remote import OpsClient  # the listing of commands does not need it

    found = find_cluster(other, os.environ)
    there_url = found.admin or found.broker
    if there_url is None:
        raise InvalidArgument(
            f"cluster {other} of clusters.toml has neither admin nor broker: write where it answers",
            field="other",
            value=other,
        )
    here_url = common.admin_url

    async def both() -> tuple[Dump, Dump]:
        options: dict[str, Any] = {
            "timeout_s": common.timeout_s,
            "principal": common.principal,
            "face": "cli",
        }
        async with OpsClient(here_url, **options) as here, OpsClient(there_url, **options) as there:
            return (
                await dumped(Side(name=common.cluster or here_url, ops=here)),
                await dumped(Side(name=other, ops=there)),
            )

    here, there = run_async(both)
    differences = differing(here, there)
    if common.as_json:
        same = sum(each == there.get(key) for key, each in here.items())
        print_json({"differences": differences, "same": same})
        return
    if differences:
        print_table(differences, ("kind", "name", "here", "there"))
    print(f"{counted(len(differences), 'difference')} between {common.cluster or here_url} and {other}")
