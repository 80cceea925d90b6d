"""All operations: those that the modules of `operations` declare.

An operation's name is its JSON-RPC method and its words of the command line. Its MCP tool has a name of its
own. A face needs only `OPERATIONS`: a call returns the result's JSON object or raises `ClusterError`.

For the command line (`GROUP VERB`):

    for operation in OPERATIONS.values():
        operation.words                 # ("topics", "create")
        operation.summary, .examples    # help, example.arguments → operation.command_line(example.arguments)
        for argument in operation.arguments:      # in order: Argument(name, flag, type, required, positional,
            ...                                   #   default, choices, minimum, maximum, help)
        operation.effect                # Effect.READ | CREATE | CHANGE | DESTROY
        operation.result                # pydantic model, for lists Page[Item]: {"items", "next_page", "total", "as_of"}

    from pydanube_admin.remote import call_sync          # no asyncio, for one call
    result: dict = call_sync(admin_url, operation.name, {"topic": "orders"}, timeout_s=10.0, face="cli",
                             principal=None)             # raises ClusterError

Omit arguments that the user did not give, because defaults are applied behind `danube.ops`. Changes (effect
other than read) also take `"plan_only": true`, which changes nothing and returns a plan
(`engine.plan_records.Plan`) with its token, and `"plan_token"`, which applies that plan once. A destructive
change needs a token: without it the answer is PLAN_REQUIRED, with the plan in `details.plan` and the ready
call in `next`. So a command line does this:

    --dry-run          call with plan_only, print the plan, exit 0
    DESTROY            call with plan_only, show the plan, confirm on a terminal or by --yes, then call with its token.
                       No terminal and no --yes: PLAN_REQUIRED, exit 4, nothing changed
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from pkgutil import iter_modules
from types import MappingProxyType
from typing import Final

from pydanube_admin import operations
from pydanube_admin.engine.operation import DECLARED, Operation

for _module in iter_modules(operations.__path__):
    import_module(f"{operations.__name__}.{_module.name}")

OPERATIONS: Final[Mapping[str, Operation]] = MappingProxyType(dict(sorted(DECLARED.items())))
TOOLS: Final[Mapping[str, Operation]] = MappingProxyType(
    {
        operation.tool: operation
        for operation in sorted(DECLARED.values(), key=lambda operation: operation.tool)
    }
)
assert len(OPERATIONS) == len(TOOLS), "two operations share a tool's name"
