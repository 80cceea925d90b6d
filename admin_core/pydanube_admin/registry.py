"""The operations there are, and the names of those that are still to come.

Operation = JSON-RPC method = words of the command line = (under its own name) MCP tool. A face walks `OPERATIONS`
and needs nothing else; what it gets back is the result's JSON object or a `ClusterError`.

For the command line (`GROUP VERB`):

    for operation in OPERATIONS.values():
        operation.words                 # ("topics", "create")
        operation.summary, .examples    # help; example.arguments → operation.command_line(example.arguments)
        for argument in operation.arguments:      # in order; Argument(name, flag, type, required, positional,
            ...                                   #   default, choices, minimum, maximum, help)
        operation.effect                # Effect.READ | CREATE | CHANGE | DESTROY
        operation.result                # pydantic model; lists are Page[Item]: {"items", "next_page", "total", "as_of"}

    from pydanube_admin.remote import call_sync          # no asyncio, for one call
    result: dict = call_sync(admin_url, operation.name, {"topic": "orders"}, timeout_s=10.0, face="cli",
                             principal=None)             # raises ClusterError

Leave out arguments the user did not give (the defaults are applied behind `danube.ops`). Changes (effect other than
read) also take `"plan_only": true`: the answer is then a plan (`plans.models.Plan`) with its token, and nothing has
changed; and `"plan_token"`, which does what the plan says, once. What destroys needs one: without it the answer is
PLAN_REQUIRED, with the plan in `details.plan` and the ready call in `next`. So a command line asks:

    --dry-run          call with plan_only, print the plan, exit 0
    DESTROY            call with plan_only, show the plan, ask on a terminal or take --yes, then call with its token;
                       no terminal and no --yes: PLAN_REQUIRED, exit 4, nothing changed
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from pydanube_admin.audit.declarations import AUDIT_OPERATIONS
from pydanube_admin.brokers.declarations import BROKER_OPERATIONS
from pydanube_admin.changes.declarations import CHANGE_OPERATIONS
from pydanube_admin.diagnosis.declarations import DIAGNOSIS_OPERATIONS
from pydanube_admin.finding.declarations import FINDING_OPERATIONS
from pydanube_admin.messages.declarations import MESSAGE_OPERATIONS
from pydanube_admin.namespaces.declarations import NAMESPACE_OPERATIONS
from pydanube_admin.next_calls import announce
from pydanube_admin.objects.declarations import OBJECT_OPERATIONS
from pydanube_admin.operation import Operation
from pydanube_admin.plans.declarations import PLAN_OPERATIONS
from pydanube_admin.reports.declarations import REPORT_OPERATIONS
from pydanube_admin.schemas.declarations import SCHEMA_OPERATIONS
from pydanube_admin.sessions.declarations import SESSION_OPERATIONS
from pydanube_admin.subscriptions.declarations import SUBSCRIPTION_OPERATIONS
from pydanube_admin.tasks.declarations import TASK_OPERATIONS
from pydanube_admin.topics.declarations import TOPIC_OPERATIONS

_DECLARED: Final = (
    *TOPIC_OPERATIONS,
    *SUBSCRIPTION_OPERATIONS,
    *NAMESPACE_OPERATIONS,
    *OBJECT_OPERATIONS,
    *SCHEMA_OPERATIONS,
    *BROKER_OPERATIONS,
    *DIAGNOSIS_OPERATIONS,
    *REPORT_OPERATIONS,
    *PLAN_OPERATIONS,
    *CHANGE_OPERATIONS,
    *AUDIT_OPERATIONS,
    *MESSAGE_OPERATIONS,
    *SESSION_OPERATIONS,
    *TASK_OPERATIONS,
    *FINDING_OPERATIONS,
)

OPERATIONS: Final[Mapping[str, Operation]] = MappingProxyType(
    {operation.name: operation for operation in sorted(_DECLARED, key=lambda operation: operation.name)}
)
TOOLS: Final[Mapping[str, Operation]] = MappingProxyType(
    {operation.tool: operation for operation in sorted(_DECLARED, key=lambda operation: operation.tool)}
)
assert len(OPERATIONS) == len(TOOLS) == len(_DECLARED), "two operations share a name"


announce(OPERATIONS)
