"""Rebuild the audit's key terms after `danube cluster recover`, at the next start of each broker.

An etcd that was restored from an older snapshot may lack the terms (`audit_chain.KeyTerms`). They are rebuilt from the first
record with a right MAC by this broker's own key: from that record on, every record needs one. Records before it get no term,
even if they name a key, because only their own key could prove them. So no forged record becomes valid.
"""

from __future__ import annotations

import logging
from typing import Final

from pydanube_core.audit_key import AuditKey
from pydanube_core.audit_recovery import RECOVERY_KEY, AuditRecovery
from pydanube_core.cluster_port import ClusterPort
from pydanube_core.errors import ClusterError

from pydanube_admin.engine.audit.audit_chain import DAMAGE, KEYS_KEY, KeyTerms, is_verified
from pydanube_admin.engine.audit.audit_cut_off import FACE
from pydanube_admin.engine.audit.audit_log import AuditLog
from pydanube_admin.engine.audit.audit_records import Entry
from pydanube_admin.engine.stored_records import CALL, new_id

_log = logging.getLogger("pydanube.admin")

_OPERATION: Final = "cluster.recover"
_AT_ONCE: Final = 128  # records of one read


async def record_recovery(port: ClusterPort, audit: AuditLog) -> None:
    """Rebuild the terms if `cluster recover` has left its note, record that in the audit, and delete the note.

    A start that is interrupted leaves the note, and the next one records the recovery again.

    Raises `ClusterError`: the audit or the metadata cannot be read or written. The next start repeats it.
    """
    note = await port.read_state(RECOVERY_KEY)
    if note is None:
        return
    key = await port.audit_key()
    recovery = AuditRecovery.from_json(note.value, key)
    if recovery is None:
        _log.warning(
            "audit_recovery_unproven",
            extra={
                "remedy": "if the key of the audit was replaced after danube cluster recover, nothing. Otherwise the metadata "
                "was altered in the store"
            },
        )
    else:
        first = await _rebuild(port, key)
        entry = Entry(
            call_id=new_id(CALL, recovery.time_ms),
            principal=recovery.by,
            face=FACE,
            operation=_OPERATION,
            arguments={"recovery": recovery.recovery, "key_terms_rebuilt_from": first},
            time_ms=recovery.time_ms,
        )
        await audit.write(entry.call(), entry.outcome(decision="allowed"))
    await port.write_state({RECOVERY_KEY: None})


async def _rebuild(port: ClusterPort, key: AuditKey) -> int | None:
    """Write the terms if they lack the first record by this key. Return its number, or None if they did not lack it."""
    kept = await port.read_state(KEYS_KEY)
    terms = KeyTerms.from_json(None if kept is None else kept.value, key, of_others=False)
    first = await _first_verified(port, key)
    if first is None or (after := terms.reaching_back(key.key_id, first)) == terms:
        return None
    revision = None if kept is None else kept.revision
    await port.write_state({KEYS_KEY: after.to_json(key)}, expected={KEYS_KEY: revision})
    _log.warning("audit_terms_rebuilt", extra={"seq": first, "key_id": key.key_id})
    return first


async def _first_verified(port: ClusterPort, key: AuditKey) -> int | None:
    """Return the number of the oldest record with a right MAC by this key, or None if there is none."""
    end, _ = await port.open_audit()
    start, _ = await port.read_audit(start=0, max_messages=1)
    while start < end:
        try:
            _, found = await port.read_audit(start=start, max_messages=min(_AT_ONCE, end - start))
        except ClusterError as error:
            if error.code not in DAMAGE:
                raise
            break  # `audit.verify` reports it
        if not found:
            break
        for offset, payload in found:
            if is_verified(offset, payload, key):
                return offset
        start = found[-1][0] + 1
    return None
