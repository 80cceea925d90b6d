"""The cluster's quotas, applied to this broker's sessions.

They follow the metadata store like roles and bindings. A rate applies per broker. Topics, subscriptions and stored
bytes are counted for the cluster, from this broker's copy of its state. If no quota is set, a batch costs one
comparison.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Final, NamedTuple
from weakref import WeakValueDictionary

from pydanube_core.diagnosis.views import RefusedChanges
from pydanube_core.names import SYSTEM_NAMESPACE
from pydanube_core.quotas import HOURLY, QUOTAS, Quota, QuotaKind, QuotaUse, parse_quota
from pydanube_core.security.identity import Identity

from pydanube_broker.admin_state import SECURITY_VERSION, AdminState, admin_table, version_table
from pydanube_broker.records import Quarantine, Records
from pydanube_broker.tenants.account import Account
from pydanube_broker.topics.gate import monotonic_ms

MOST_ACCOUNTS: Final = 10_000  # accounts. Beyond it, idle ones are removed
MOST_SLOWED: Final = 1_000  # topics with a record of the quotas that slowed them


class FeltQuotas:
    """The quotas that the traffic of topics waits for, or was refused by, for diagnosis."""

    def __init__(self) -> None:
        self._felt: dict[str, dict[str, int]] = {}  # topic → "namespace shop: bytes_in_per_s" → last time

    def note(self, topic: str, quota: str) -> None:
        if topic not in self._felt and len(self._felt) >= MOST_SLOWED:
            del self._felt[next(iter(self._felt))]
        self._felt.setdefault(topic, {})[quota] = monotonic_ms()

    def of(self, topic: str, window_ms: int) -> dict[str, float]:
        """Return the quotas that a topic felt in the window → seconds ago."""
        now_ms, told = monotonic_ms(), self._felt.get(topic, {})
        return {label: (now_ms - at) / 1000 for label, at in told.items() if now_ms - at <= window_ms}


class Quotas:
    """See the module. Single user: the loop.

    Args:
        defaults: `[quota]`: kind → the limits of holders without a quota of their own.
    """

    def __init__(
        self, state: AdminState, defaults: Mapping[QuotaKind, str], quarantine: Quarantine | None = None
    ) -> None:
        self.slowed, self.refused = FeltQuotas(), FeltQuotas()
        self._defaults: dict[QuotaKind, Quota] = {
            kind: Quota(kind=kind, name="", limits=parse_quota(kind, text)) for kind, text in defaults.items()
        }
        self.on = any(each.limits for each in self._defaults.values())  # any quota is set
        self._own: dict[tuple[QuotaKind, str], Quota] = {}
        self._stored = admin_table(QUOTAS, Quota.from_bytes)
        self.records = Records(
            state.store, [self._stored, version_table()], changed=self._apply, quarantine=quarantine
        )
        # Sessions hold theirs. The last ones are also held here, so that a debt outlives its session.
        self._accounts: WeakValueDictionary[tuple[QuotaKind, str], Account] = WeakValueDictionary()
        self._held: dict[tuple[QuotaKind, str], Account] = {}
        self._shares: WeakValueDictionary[tuple[str, str], Share] = WeakValueDictionary()

    # -- the quotas in effect -----------------------------------------------------------------------------------

    async def look(self) -> None:
        """Read all changes made up to now. Raises `StoreUnavailable`: the quotas before stay in effect."""
        await self.records.refresh(SECURITY_VERSION)

    def _apply(self, keys: Sequence[str]) -> None:
        """Apply the present quotas to all accounts."""
        self._own = {(quota.kind, quota.name): quota for quota in self._stored}
        self.on = bool(self._own) or any(each.limits for each in self._defaults.values())
        now_ms = monotonic_ms()
        for account in self.accounts():
            account.set_quota(self.of(account.kind, account.name), now_ms)

    def of(self, kind: QuotaKind, name: str) -> Quota:
        """Return the quota in effect: the holder's own, else the general one, else that of the settings."""
        own = self._own.get((kind, name)) or self._own.get((kind, ""))
        return own or self._defaults.get(kind) or Quota(kind=kind, name=name)

    def uses(self) -> Sequence[QuotaUse]:
        """Return the use of every namespace and principal that has sessions at this broker, or had some recently."""
        return [account.use() for account in self.accounts()]

    def account(self, kind: QuotaKind, name: str) -> Account:
        """Return the account of a namespace or a principal."""
        found = self._accounts.get((kind, name))
        if found is None:
            now_ms = monotonic_ms()
            if len(self._held) >= MOST_ACCOUNTS:
                self._held = {key: each for key, each in self._held.items() if not each.idle(now_ms)}
            found = self._accounts[kind, name] = self._held[kind, name] = Account(kind, name)
            found.set_quota(self.of(kind, name), now_ms)
        return found

    def accounts(self) -> Sequence[Account]:
        """Return the accounts of all namespaces and principals that this broker counts."""
        return list(self._accounts.values())

    def of_principal(self, identity: Identity | None) -> Account | None:
        """Return a principal's account. None for an unauthenticated caller, and for the operator on this machine."""
        if identity is None or identity.method == "none" or identity.everything:
            return None
        return self.account("principal", str(identity.principal))

    # -- the use of quotas ---------------------------------------------------------------------------------------

    def share(self, namespace: str, identity: Identity | None) -> Share:
        """Return the accounts for a session on a topic of the namespace. The same object for the same principal."""
        principal = self.of_principal(identity)
        key = (namespace, "" if principal is None else principal.name)
        found = self._shares.get(key)
        if found is None:
            accounts = [] if namespace == SYSTEM_NAMESPACE else [self.account("namespace", namespace)]
            accounts += [] if principal is None else [principal]
            found = self._shares[key] = Share(self, tuple(accounts))
        return found

    def connection(self, identity: Identity) -> Callable[[], None]:
        """Count a connection of an authenticated principal. Call the result when it closes.

        Raises `QuotaExceeded`: it is one too many.
        """
        account = self.of_principal(identity)
        if account is None:
            return _nothing
        account.check_room("connections", account.counts["connections"], monotonic_ms())
        account.counts["connections"] += 1

        def ended() -> None:
            account.counts["connections"] -= 1

        return ended

    def request(self, identity: Identity | None) -> None:
        """Count a call of an operation. Raises `QuotaExceeded`."""
        if self.on and (account := self.of_principal(identity)) is not None:
            account.take_one("requests_per_s", monotonic_ms())

    def change(self, identity: Identity | None, destroyed_messages: int | None) -> None:
        """Count a change that is about to be made. None: its loss is unknown. Raises `QuotaExceeded`, having counted nothing."""
        if self.on and (account := self.of_principal(identity)) is not None:
            account.take_change(destroyed_messages, monotonic_ms())

    def refused_changes(self, window_ms: int) -> tuple[RefusedChanges, ...]:
        """Return the hourly quotas of principals that refused a change in the window."""
        now_ms = monotonic_ms()
        return tuple(
            RefusedChanges(
                account.name.partition(":")[2], f"{account.label}: {key}", (now_ms - told.last_ms) / 1000
            )
            for account in self.accounts()
            for key, told in account.refused.items()
            if key in HOURLY and now_ms - told.last_ms <= window_ms
        )

    @asynccontextmanager
    async def making(
        self, key: str, namespace: str, number: int, present: Callable[[], int]
    ) -> AsyncIterator[None]:
        """Context in which topics or subscriptions are created. Creations under way count, too.

        Raises `QuotaExceeded`: they would be too many. Nothing has begun.
        """
        if not self.on or namespace == SYSTEM_NAMESPACE:
            yield
            return
        account = self.account("namespace", namespace)
        if account.quota.limits.get(key) or account.quota.warnings.get(key):
            account.check_room(key, present() + account.counts[key], monotonic_ms(), more=number)
        account.counts[key] += number
        try:
            yield
        finally:
            account.counts[key] -= number

    async def measure(self, stored: Callable[[str], Awaitable[int]]) -> None:
        """Measure the stored bytes of each namespace with a quota for them."""
        for account in self.accounts():
            quota = account.quota
            if quota.limits.get("stored_bytes") or quota.warnings.get("stored_bytes"):
                account.counts["stored_bytes"] = await stored(account.name)

    def felt(self) -> Iterator[tuple[tuple[str, str, str], int]]:
        """Return ((holder, quota, slowed | refused | warned), count), for metrics."""
        for use in self.uses()[:MOST_SLOWED]:
            for what, found in (("slowed", use.slowed), ("refused", use.refused), ("warned", use.warned)):
                for quota, (times, _) in found.items():
                    yield (f"{use.kind} {use.name}", quota, what), times


class Waited(NamedTuple):
    """How many ms a session waits, and for which quota."""

    wait_ms: int
    quota: str


class Share:
    """The accounts that the sessions of one principal in one namespace count against."""

    __slots__ = ("__weakref__", "_quotas", "accounts")

    def __init__(self, quotas: Quotas, accounts: tuple[Account, ...]) -> None:
        self._quotas = quotas
        self.accounts = accounts

    @property
    def on(self) -> bool:
        """Whether any quota is set. If not, nothing else is checked."""
        return self._quotas.on

    def check_publish(self) -> None:
        """Raise `QuotaExceeded` if nothing more may be published now."""
        now_ms = monotonic_ms()
        for account in self.accounts:
            account.check_debt("messages_in_per_s", now_ms)
            account.check_debt("bytes_in_per_s", now_ms)
            account.check_room("stored_bytes", account.counts["stored_bytes"], now_ms, more=0)

    def count_published(self, topic: str, messages: int, size: int) -> Waited | None:
        """Count published messages. Return how long their producer has to wait."""
        for account in self.accounts:
            if "stored_bytes" in account.quota.limits:  # until the next measurement
                account.counts["stored_bytes"] += size
        return self._took(topic, "messages_in_per_s", messages, "bytes_in_per_s", size)

    def count_delivered(self, topic: str, messages: int, size: int) -> Waited | None:
        """Count delivered messages. Return how long their consumer has to wait."""
        return self._took(topic, "messages_out_per_s", messages, "bytes_out_per_s", size)

    def _took(self, topic: str, by_number: str, messages: int, by_size: str, size: int) -> Waited | None:
        now_ms, longest = monotonic_ms(), None
        for account in self.accounts:
            for key, count in ((by_number, messages), (by_size, size)):
                wait_ms = account.take(key, count, now_ms)
                if wait_ms:
                    quota = f"{account.label}: {key}"
                    self._quotas.slowed.note(topic, quota)
                    if longest is None or wait_ms > longest.wait_ms:
                        longest = Waited(wait_ms, quota)
        return longest

    def check_producer(self) -> None:
        """Raise `QuotaExceeded` if another producer would be too many."""
        now_ms = monotonic_ms()
        for account in self.accounts:
            account.check_room("producers", account.counts["producers"], now_ms)

    def producers(self, change: int) -> None:
        """Count producers that came (positive) or left (negative)."""
        for account in self.accounts:
            account.counts["producers"] += change


def _nothing() -> None: ...
