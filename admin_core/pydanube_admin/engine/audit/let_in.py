"""Who was let in while the broker was stopped (`danube security init`, `recover`): written into the audit at its next start."""

from __future__ import annotations

import json
from typing import Final

from pydanube_core.cluster_port import ClusterPort
from pydanube_core.security.records import LET_IN

from pydanube_admin.engine.audit.audit_log import AuditLog
from pydanube_admin.engine.audit.audit_records import Entry
from pydanube_admin.engine.identifiers import CALL, new_id

FACE: Final = "cli"
MOST: Final = 100  # at one start; the others at the next


async def record_let_in(port: ClusterPort, audit: AuditLog) -> None:
    """Record each, then forget it: a crash in between records it once more.

    Raises `ClusterError`: the audit or the metadata cannot be written; what is left is recorded at the next start.
    """
    for item in await port.list_state(LET_IN, after=None, limit=MOST):
        found = json.loads(item.value)
        entry = Entry(
            call_id=new_id(CALL, found["time_ms"]),
            principal=found["by"],
            face=FACE,
            operation=found["operation"],
            arguments={"principal": found["principal"], "token_id": found["token_id"]},
            time_ms=found["time_ms"],
        )
        await audit.write(entry.call(), entry.outcome(decision="allowed"))
        await port.write_state({item.key: None})
