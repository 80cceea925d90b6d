"""The use of one namespace or one principal at this broker, compared with its quota. Pure: time is an argument.

Rates are charged afterwards. A batch is stored, or sent, as a whole, and its session waits until the debt is paid. So
no batch is refused because of a burst, the order is kept, and sessions of one account wait in turn. The rate applies to
the average. Only if the debt exceeds `LONGEST_DEBT_MS`, because many came together, the next batch is refused.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from typing import Final

from pydanube_core.errors import QuotaExceeded
from pydanube_core.quotas import HOURLY, LONGEST_DEBT_MS, RATES, Quota, QuotaKind, QuotaUse

from pydanube_broker.topics.rate_limit import TokenBucket

HOUR_S: Final = 3600


@dataclass(slots=True)
class QuotaTally:
    """How often one quota took effect, and the last time (monotonic milliseconds)."""

    times: int = 0
    waited_ms: int = 0
    last_ms: int = 0


class Account:
    """See the module. A change of its quota takes effect with the next call."""

    __slots__ = (
        "__weakref__", "_hard", "_soft", "counts", "kind", "name", "quota", "refused", "slowed", "warned",
    )  # fmt: skip

    def __init__(self, kind: QuotaKind, name: str) -> None:
        self.kind: QuotaKind = kind
        self.name = name
        self.quota = Quota(kind=kind, name=name)
        self.counts: Counter[str] = Counter()  # connections, producers, stored_bytes: the present numbers
        self.slowed: dict[str, QuotaTally] = {}  # by quota
        self.refused: dict[str, QuotaTally] = {}
        self.warned: dict[str, QuotaTally] = {}
        self._hard: dict[str, TokenBucket] = {}
        self._soft: dict[str, TokenBucket] = {}

    @property
    def label(self) -> str:
        return f"{self.kind} {self.name}"

    def idle(self, now_ms: int) -> bool:
        """Return whether the account has no state that would be lost if it were forgotten."""
        return not any(self.counts.values()) and not any(
            bucket.wait_ms(bucket.rate_per_s if key in HOURLY else 0, _clock(key, now_ms))
            for key, bucket in self._hard.items()
        )

    def use(self) -> QuotaUse:
        """Return the counts, and how often the quota slowed, refused or warned."""
        slowed, refused, warned = (
            {key: (told.times, told.waited_ms) for key, told in found.items()}
            for found in (self.slowed, self.refused, self.warned)
        )
        used = {key: number for key, number in self.counts.items() if number}
        return QuotaUse(
            kind=self.kind, name=self.name, used=used, slowed=slowed, refused=refused, warned=warned
        )

    def set_quota(self, quota: Quota, now_ms: int) -> None:
        """Set another quota. Debts stay."""
        self.quota = quota
        for buckets, wanted in ((self._hard, quota.limits), (self._soft, quota.warnings)):
            rates = {key: rate for key, rate in wanted.items() if rate and (key in RATES or key in HOURLY)}
            for key in set(buckets) - set(rates):
                del buckets[key]
            for key, rate in rates.items():
                if key in buckets:
                    buckets[key].set_rate(rate, _clock(key, now_ms))
                else:
                    buckets[key] = TokenBucket(rate, _clock(key, now_ms))

    # -- rates ---------------------------------------------------------------------------------------------------

    def take(self, key: str, count: int, now_ms: int) -> int:
        """Count messages and bytes that came or left. Return how many ms their sender has to wait."""
        self._watch(key, count, now_ms)
        bucket = self._hard.get(key)
        if bucket is None:
            return 0
        bucket.take(count, now_ms)
        wait_ms = bucket.wait_ms(0, now_ms)
        if wait_ms:
            _note(self.slowed, key, now_ms, wait_ms)
        return wait_ms

    def check_debt(self, key: str, now_ms: int) -> None:
        """Raise `QuotaExceeded` if the debt is so large that nothing more is accepted."""
        bucket = self._hard.get(key)
        debt_ms = 0 if bucket is None else bucket.wait_ms(0, now_ms)
        if debt_ms > LONGEST_DEBT_MS:
            raise self._exceeded(key, debt_ms - LONGEST_DEBT_MS, now_ms)

    def take_one(self, key: str, now_ms: int) -> None:
        """Count one of a quota whose excess is an error. Raises `QuotaExceeded`, and then nothing was counted."""
        self._watch(key, 1, now_ms)
        bucket = self._hard.get(key)
        if bucket is not None:
            if wait_ms := bucket.wait_ms(1, now_ms):
                raise self._exceeded(key, wait_ms, now_ms)
            bucket.take(1, now_ms)

    def take_change(self, destroyed_messages: int | None, now_ms: int) -> None:
        """Count a change and the messages that it destroys. Raises `QuotaExceeded`, and then nothing was counted.

        `destroyed_messages`: None if they cannot be counted. Such a change is refused if there is a quota for them.
        """
        if destroyed_messages is None and (key := "destroyed_messages_per_h") in self._hard:
            _note(self.refused, key, now_ms)
            limit = self.quota.limits.get(key, 0)
            raise QuotaExceeded(
                f"{self.label} may not make this change: it cannot be counted how many messages it destroys, and its quota is "
                f"{limit} {key}. An admin makes the change, or removes the quota with `danube quotas set`. Nothing was changed",
                field=key,
                value=None,
                limit=limit,
                quota=self.label,
                retry_after_ms=HOUR_S * 1000,
            )
        wanted = {"changes_per_h": 1, "destroyed_messages_per_h": destroyed_messages or 0}
        for key, count in wanted.items():
            bucket, limit = self._hard.get(key), self.quota.limits.get(key, 0)
            if bucket is None or not count:
                continue
            wait_ms = bucket.wait_ms(count, _clock(key, now_ms)) * HOUR_S
            if wait_ms or count > limit:  # a larger one would pass whenever the bucket is full
                _note(self.refused, key, now_ms)
                when = (
                    "destroy less in one change"
                    if count > limit
                    else f"try again in {math.ceil(wait_ms / 60_000)} min"
                )
                raise QuotaExceeded(
                    f"{self.label} may not make this change, which counts {count} of its quota of {limit} {key}: {when}. An "
                    "admin gives a larger quota with `danube quotas set`. Nothing was changed",
                    field=key,
                    value=count,
                    limit=limit,
                    quota=self.label,
                    retry_after_ms=wait_ms or HOUR_S * 1000,
                )
        for key, count in wanted.items():
            self._watch(key, count, now_ms)
            if key in self._hard:
                self._hard[key].take(count, _clock(key, now_ms))

    def _watch(self, key: str, count: int, now_ms: int) -> None:
        """Count for a warning, which is due when the rate is exceeded. It causes no wait."""
        soft = self._soft.get(key)
        if soft is not None:
            clock = _clock(key, now_ms)
            soft.take(count, clock)
            if soft.wait_ms(0, clock):
                _note(self.warned, key, now_ms)
                self._soft[key] = TokenBucket(soft.rate_per_s, clock)

    # -- numbers -------------------------------------------------------------------------------------------------

    def check_room(self, key: str, present: int, now_ms: int, *, more: int = 1) -> None:
        """Raise `QuotaExceeded` if `more` would exceed the quota."""
        warning = self.quota.warnings.get(key)
        if warning and present + more > warning:
            _note(self.warned, key, now_ms)
        limit = self.quota.limits.get(key)
        if limit and present + more > limit:
            _note(self.refused, key, now_ms)
            raise QuotaExceeded(
                f"{self.label} has {present} of {limit} {key.replace('_', ' ')}: free some. An admin gives a "
                "larger quota with `danube quotas set`",
                field=key,
                value=present,
                limit=limit,
                quota=self.label,
                retry_after_ms=1000,
            )

    def _exceeded(self, key: str, wait_ms: int, now_ms: int) -> QuotaExceeded:
        _note(self.refused, key, now_ms)
        return QuotaExceeded(
            f"{self.label} has taken more than its quota of {self.quota.limits[key]} {key}: try again in {wait_ms} ms",
            field=key,
            limit=self.quota.limits[key],
            quota=self.label,
            retry_after_ms=wait_ms,
        )


def _note(told: dict[str, QuotaTally], key: str, now_ms: int, waited_ms: int = 0) -> None:
    found = told.setdefault(key, QuotaTally())
    found.times += 1
    found.waited_ms += waited_ms
    found.last_ms = now_ms


def _clock(key: str, now_ms: int) -> int:
    """Return the time of a quota's bucket. A second of it is an hour where the quota is one an hour."""
    return now_ms // HOUR_S if key in HOURLY else now_ms
