"""Rebuild the audit's key terms after `danube cluster recover`, at the next start of each broker.

An etcd that was restored from an older snapshot may lack the terms (`audit_chain.KeyTerms`). They are rebuilt from the first
record with a right MAC by this broker's own key: from that record on, every record needs one. Records before it get no term,
even if they name a key, because only their own key could prove them. So no forged record becomes valid.
"""

from __future__ import annotations

import logging
from typing import Final

from pydanube_core.audit_key import AuditKey
from pydanube_core.cluster_port import ClusterPort
from pydanube_core.errors import ClusterError, Conflict

from pydanube_admin.engine.audit.audit_chain import DAMAGE, KEYS_KEY, KeyTerms, is_verified
from pydanube_admin.engine.audit.audit_cut_off import FACE
from pydanube_admin.engine.audit.audit_log import ATTEMPTS, AuditLog
from pydanube_admin.engine.audit.audit_records import Entry
from pydanube_admin.engine.stored_records import CALL, new_id

_log = logging.getLogger("pydanube.admin")

_OPERATION: Final = "cluster.recover"


async def record_recovery(port: ClusterPort, audit: AuditLog) -> None:
    """If the directory was recovered, rebuild the terms, record the recovery in the audit, and forget it.

    The next start repeats it if this one is interrupted, or if no record has a MAC by this broker's key: the file of the
    key may only be unusable now.

    Raises `ClusterError`: the audit or the metadata cannot be read or written. The next start repeats it.
    """
    recovery = await port.audit_recovery()
    if recovery is None:
        return
    key = await port.audit_key()
    first = await _first_verified(port, key)
    if first is None:
        _log.warning(
            "audit_recovery_waits",
            extra={
                "key_id": key.key_id,
                "remedy": "if audit_key_unusable was logged, correct the key and restart the broker. Otherwise nothing",
            },
        )
        return
    rebuilt = await _rebuild(port, key, first)
    entry = Entry(
        call_id=new_id(CALL, recovery.time_ms),
        principal=recovery.by,
        face=FACE,
        operation=_OPERATION,
        arguments={"recovery": recovery.recovery, "key_terms_rebuilt_from": first if rebuilt else None},
        time_ms=recovery.time_ms,
    )
    await audit.write(entry.call(), entry.outcome(decision="allowed"))
    await port.audit_recovered()


async def _rebuild(port: ClusterPort, key: AuditKey, first: int) -> bool:
    """Write the terms if they lack this key's first record. Return whether they did."""
    for _ in range(ATTEMPTS):
        kept = await port.read_state(KEYS_KEY)
        terms = KeyTerms.from_json(None if kept is None else kept.value, key, of_others=False)
        after = terms.reaching_back(key.key_id, first)
        if after == terms:
            return False
        revision = None if kept is None else kept.revision
        try:
            await port.write_state({KEYS_KEY: after.to_json(key)}, expected={KEYS_KEY: revision})
        except Conflict:
            continue
        _log.warning("audit_terms_rebuilt", extra={"seq": first, "key_id": key.key_id})
        return True
    raise Conflict(f"the terms of the audit's keys were written {ATTEMPTS} times before this broker could")


async def _first_verified(port: ClusterPort, key: AuditKey) -> int | None:
    """Return the number of the oldest record with a right MAC by this key, or None if there is none.

    Found by bisection, O(log n) reads: after a change of keys all records are the new key's. If forged records are among
    them, it may return a later one. Then this key's records before it have no term, and `audit.verify` reports them.
    """
    end, _ = await port.open_audit()
    start, _ = await port.read_audit(start=0, max_messages=1)
    low, high = start - 1, end  # `high` counts as verified
    middle = start
    while middle < high:
        if await _is_verified(port, middle, key):
            high = middle
        else:
            low = middle
        middle = (low + 1 + high) // 2
    return high if high < end else None


async def _is_verified(port: ClusterPort, seq: int, key: AuditKey) -> bool:
    try:
        _, found = await port.read_audit(start=seq, max_messages=1)
    except ClusterError as error:
        if error.code not in DAMAGE:
            raise
        return False  # `audit.verify` reports it
    return bool(found) and found[0][0] == seq and is_verified(seq, found[0][1], key)
