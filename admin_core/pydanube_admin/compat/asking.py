"""Call operations for the methods of `danube_admin`, each as the call's principal, one at a time.

While authorization is off, the name is a claim. The original's tool sends a token (`authorization: Bearer
<jwt>`), whose claims name the principal. It is read here and not checked, and records contain `authenticated:
false`. `danube-principal` is the header that our HTTP face has.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from pydanube_core.errors import ClusterError, ConsumerBusy, GrpcStatus, Overloaded
from pydanube_core.facts import CreatedTopicFacts
from pydanube_core.grpc_wire import is_sdk_agent
from pydanube_core.ops_call import call_request
from pydanube_core.security.identity import Identity, current_identity

from pydanube_admin.core import AdminCore
from pydanube_admin.engine.context import COMPAT
from pydanube_admin.engine.models import MAX_LIMIT, Place
from pydanube_admin.engine.operation import DECLARED
from pydanube_admin.peers import TOPICS_NAMED

ANONYMOUS: Final = "anonymous"
HEADER: Final = "danube-principal"
BROKER: Final = "x-danube-internal-broker"
MAX_TOKEN_CHARS: Final = 8192
MAX_NAME_CHARS: Final = 256


def principal_of(metadata: Iterable[tuple[str, str | bytes]], proven: Identity | None = None) -> str:
    """Return the principal in the metadata, or `anonymous`.

    For an authenticated caller, return the principal that it acts for, or an empty text.
    """
    texts = {key: value for key, value in metadata if isinstance(value, str)}
    if proven is not None and proven.method != "none":
        # Brokers of the original identify themselves by it: here it is a claim like others
        broker = texts.get(BROKER)
        return texts.get(HEADER, "") if broker is None else f"broker_internal:{broker}"
    name = texts.get(HEADER) or _named_by(texts.get("authorization", ""))
    return name[:MAX_NAME_CHARS] if name and name.isprintable() else ANONYMOUS


def _named_by(authorization: str) -> str | None:
    scheme, _, token = authorization.partition(" ")
    parts = token.strip().split(".")
    if scheme.lower() != "bearer" or len(parts) != 3 or len(token) > MAX_TOKEN_CHARS:
        return None
    try:
        claims = json.loads(base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4)))
    except (binascii.Error, ValueError, RecursionError):
        return None
    if not isinstance(claims, dict):
        return None
    name = claims.get("principal_name") or claims.get("sub")
    return name if isinstance(name, str) else None


Metadata = Callable[[], Iterable[tuple[str, str | bytes]]]  # of the call under way

# The protocol has no pages: an answer of more items would not fit a gRPC message anyway
MAX_PAGES: Final = 100


class Asking:
    """Calls the core for the tool, which cannot show a plan: plans and applies destructive calls in one step."""

    def __init__(self, core: AdminCore, metadata: Metadata = tuple) -> None:
        self._core = core
        self._metadata = metadata

    async def __call__(self, operation: str, arguments: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Return the result's object. Raises the operation's `ClusterError`.

        A call about one broker, or for the leader, is carried out there. No such operation destroys, so it
        needs no plan.
        """
        principal = principal_of(self._metadata(), current_identity.get())
        if DECLARED[operation].at in (Place.BROKER, Place.LEADER):
            call = call_request(operation, arguments or {}, principal=principal, face=COMPAT)
            if (elsewhere := await self._core.by_another_broker(call)) is not None:
                found: dict[str, Any] = json.loads(elsewhere)
                return found
        outcome = await self._core.call(
            operation, arguments or {}, principal=principal, face=COMPAT, one_step=True
        )
        if isinstance(outcome, ConsumerBusy):
            # Its status PERMISSION_DENIED is for the data port, where official clients act on it
            raise outcome.with_status(GrpcStatus.FAILED_PRECONDITION)
        if isinstance(outcome, ClusterError):
            raise outcome
        return outcome.model_dump(mode="json", by_alias=True)

    @property
    def by_sdk(self) -> bool:
        """Whether our own SDK makes the call under way."""
        return is_sdk_agent(dict(self._metadata()).get("user-agent"))

    async def created(self, topic: str) -> CreatedTopicFacts:
        """Return the facts of a topic that a list named, without its owner. Raises `TopicNotFound`."""
        return await self._core.created_topic(topic)

    async def every(self, operation: str, arguments: Mapping[str, Any] | None = None) -> list[dict[str, Any]]:
        """Return all items of a list. Raises `Overloaded`: too many for an answer without pages."""
        return (await self.every_and_away(operation, arguments))[0]

    async def every_and_away(
        self, operation: str, arguments: Mapping[str, Any] | None = None
    ) -> tuple[list[dict[str, Any]], set[str]]:
        """Return as `every`, and the topics that the list lacks, wholly or in part: their broker does not answer."""
        items: list[dict[str, Any]] = []
        away: set[str] = set()
        page: dict[str, Any] = {"limit": MAX_LIMIT}
        while len(items) < MAX_PAGES * MAX_LIMIT:
            found = await self(operation, {**(arguments or {}), **page})
            lacking = found.get("not_seen") or []
            if page["limit"] > TOPICS_NAMED and any(
                each.get("topic_count", 0) > TOPICS_NAMED for each in lacking
            ):
                page["limit"] = TOPICS_NAMED  # a page names no more of them
                continue
            items += found["items"]
            away.update(*(each.get("topics", ()) for each in lacking))
            if found["next_page"] is None:
                return items, away
            page["page"] = found["next_page"]
        raise Overloaded(
            f"{operation} has more than {MAX_PAGES * MAX_LIMIT} items, and danube_admin has no pages: use "
            f"`danube {operation.replace('.', ' ')} --limit {MAX_LIMIT}` instead",
            retryable=False,
        )


class AskingService:
    """The base of classes whose methods are those of a service, carried out as operations."""

    def __init__(self, ask: Asking) -> None:
        self._ask = ask
