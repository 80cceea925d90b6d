"""The permission checks of a broker with authorization on, decided in one place."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import anyio
from pydanube_core.errors import PermissionDenied, Unauthenticated
from pydanube_core.names import TopicName
from pydanube_core.security.identity import Identity, current_identity
from pydanube_core.security.permissions import CLUSTER, LOOK_UP, Grants, Resource
from pydanube_core.security.scopes import scope_of

from pydanube_broker.admin_state import AdminState
from pydanube_broker.records import Quarantine
from pydanube_broker.security.access_records import AccessRecords
from pydanube_broker.security.authenticator import Authenticator, FailedLogins
from pydanube_broker.security.jwt_keys import web_tokens
from pydanube_broker.security.last_used import LastUsed
from pydanube_broker.security.published_keys import KeySource, PublishedKeys

if TYPE_CHECKING:
    from pydanube_broker.settings.security import Auth

MOST_COUNTED: Final = 1000  # permissions with counts of their own


class Locks:
    """See the module.

    Args:
        access_records: roles, bindings, tokens.
        authenticator: authenticates callers. It also decides whether refusals are enforced (`required`) or counted
            (`optional`).
        last_used: records the use of tokens.
        published: keys of tokens from a URL, or None.
    """

    def __init__(
        self,
        access_records: AccessRecords,
        authenticator: Authenticator,
        last_used: LastUsed,
        published: PublishedKeys | None = None,
    ) -> None:
        self.last_used = last_used
        self._published = published
        self.access_records = access_records
        self.authenticator = authenticator
        self.required = authenticator.required
        # By permission. With `optional`, the refusals that `required` would make.
        self.denied = authenticator.refused

    @property
    def grants(self) -> Grants:
        return self.access_records.grants

    def check(self, identity: Identity | None, permission: str, resource: Resource = CLUSTER) -> None:
        """Raise if the identity may not do that there. The refusal is the same whether or not the resource exists.

        Raises:
            Unauthenticated: the caller has no identity, or its credential is no longer valid.
            PermissionDenied: names the missing permission, the resource, and a remedy.
        """
        try:
            if identity is None:
                raise Unauthenticated("this call came without an identity")
            self.authenticator.check(identity.actor or identity)
        except Unauthenticated:
            if self.required:
                raise
        else:
            if self._may(identity, permission, resource):
                return
        if len(self.denied) < MOST_COUNTED or permission in self.denied:
            self.denied[permission] += 1
        if self.required:
            assert identity is not None
            raise denied(identity, permission, resource)

    def allows(self, identity: Identity | None, permission: str, resource: Resource) -> bool:
        """Return whether the identity may see it. Nothing is counted."""
        if not self.required:
            return True
        return identity is not None and self._may(identity, permission, resource)

    def _may(self, identity: Identity, permission: str, resource: Resource) -> bool:
        """Return whether the identity has the permission, and an actor on its behalf has it, too."""
        if not _in_scope(identity, permission):
            return False
        held = identity.everything or self.grants.decide(identity.principal, permission, resource).allowed
        held = held and all(
            _covers(maker.scopes, permission)
            and self.grants.decide(maker.principal, permission, resource).allowed
            for maker in identity.makers
        )
        return held and (identity.actor is None or self._may(identity.actor, permission, resource))

    def sees_topic(self, name: TopicName) -> bool:
        """Return whether an error may suggest a topic to the caller of the call under way."""
        return self.allows(current_identity.get(), LOOK_UP, Resource.of(name))

    def allows_part(self, identity: Identity | None, permission: str, whole: Resource) -> bool:
        """Return whether the caller may see some part of `whole`, perhaps all. A list is then cut to it."""
        if not self.required or identity is None:
            return False
        self.authenticator.check(identity.actor or identity)
        return self._may_part(identity, permission, whole)

    def _may_part(self, identity: Identity, permission: str, whole: Resource) -> bool:
        """As `_may`, for some part of `whole`."""
        if not _in_scope(identity, permission):
            return False
        held = identity.everything or self.grants.decide_part(identity.principal, permission, whole)
        held = held and all(
            _covers(maker.scopes, permission) and self.grants.decide_part(maker.principal, permission, whole)
            for maker in identity.makers
        )
        return held and (identity.actor is None or self._may_part(identity.actor, permission, whole))

    def check_scope(self, identity: Identity, permission: str) -> None:
        """Check that the caller's token has the scope. Grants do not count. Raises `PermissionDenied`."""
        if self.required and not _in_scope(identity, permission):
            self.denied[permission] += 1
            raise denied(identity, permission, CLUSTER)

    async def run(self) -> None:
        """Follow grants, refresh published keys and record the use of tokens, until cancelled."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self.access_records.records.follow)
            tasks.start_soon(self.last_used.run)
            if self._published is not None:
                tasks.start_soon(self._published.run)

    async def reload(self) -> None:
        await self.access_records.look()


def _in_scope(identity: Identity, permission: str) -> bool:
    return _covers(identity.scopes, permission)


def _covers(scopes: frozenset[str] | None, permission: str) -> bool:
    return scopes is None or scope_of(permission) in scopes


def denied(identity: Identity, permission: str, resource: Resource) -> PermissionDenied:
    if not _in_scope(identity, permission):
        return PermissionDenied(
            f"the token was not issued for {scope_of(permission)}: sign in again, and request that scope as well",
            permission=permission,
            principal=str(identity.principal),
            scope=scope_of(permission),
        )
    if identity.makers:
        names = ", ".join(str(maker.principal) for maker in identity.makers)
        return PermissionDenied(
            f"the token of {identity.principal} has only permissions that all its makers have ({names}), and one has no "
            f"{permission} on {resource}: an admin makes a token of its own with `danube tokens create`",
            permission=permission,
            resource="cluster" if resource == CLUSTER else str(resource),
            principal=str(identity.principal),
            makers=[str(maker.principal) for maker in identity.makers],
        )
    return PermissionDenied(
        f"{identity.principal} has no {permission} on {resource}. `danube security whoami` shows your "
        "permissions, and an admin gives a role that has this one with `danube bindings create`",
        permission=permission,
        resource="cluster"
        if resource == CLUSTER
        else str(resource),  # one word, since texts of errors are not for programs
        principal=str(identity.principal),
    )


async def open_locks(
    settings: Auth,
    state: AdminState,
    refused: Counter[str],
    connections: Callable[[Identity], Callable[[], None]],
    quarantine: Quarantine | None = None,
) -> Locks | None:
    """Open the locks of a broker, from `[auth]` and the records in the metadata store. None if authentication is off.

    Args:
        refused, connections: see `Authenticator`.
        quarantine: takes records that cannot be read.

    Raises:
        InvalidArgument: the keys of tokens cannot be used.
    """
    if settings.mode == "off":
        return None
    jwt = web_tokens(settings)
    access_records = AccessRecords(state, quarantine)
    await access_records.records.load()
    keeper = Authenticator(
        access_records,
        jwt,
        required=settings.mode == "required",
        refused=refused,
        failed=FailedLogins(settings.failure_delay),
        connections=connections,
    )
    published = None
    if jwt is not None and settings.jwks_url is not None:
        source = KeySource(url=settings.jwks_url, ca=settings.jwks_ca, refresh_s=settings.jwks_refresh)
        published = PublishedKeys(source, jwt, access_records.changed)
        await published.read()  # a start does not depend on it
    return Locks(access_records, keeper, LastUsed(state, access_records), published)
