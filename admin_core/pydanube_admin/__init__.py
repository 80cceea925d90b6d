"""The admin core: every operation, declared once, carried out in one place, reached by every face alike.

`registry` declares the operations, `core` carries them out beside the broker, `remote` is how faces call them;
`jsonrpc` and `http` are the face on port 8765. The names below are imported when they are first used: a command
that only prints its help needs the registry and must not wait for grpc.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from pydanube.principal import default_principal

    from pydanube_admin.core import AdminCore
    from pydanube_admin.engine.models import Effect
    from pydanube_admin.engine.operation import Argument, ArgumentType, Example, Operation
    from pydanube_admin.registry import OPERATIONS, TOOLS
    from pydanube_admin.remote import OpsClient, call_sync

__all__ = [
    "OPERATIONS",
    "TOOLS",
    "AdminCore",
    "Argument",
    "ArgumentType",
    "Effect",
    "Example",
    "Operation",
    "OpsClient",
    "call_sync",
    "default_principal",
]

_HOMES: Final = {
    "AdminCore": "core",
    **dict.fromkeys(("Argument", "ArgumentType", "Example", "Operation"), "engine.operation"),
    "Effect": "engine.models",
    **dict.fromkeys(("OPERATIONS", "TOOLS"), "registry"),
    **dict.fromkeys(("OpsClient", "call_sync", "default_principal"), "remote"),
}
assert set(_HOMES) == set(__all__), "a name is exported but has no home, or the other way round"


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{home}"), name)
