"""The OpenRPC document: what `rpc.discover` answers, made from the registry.

Source: the OpenRPC specification 1.3. Operations that this face does not carry out yet are left out.
"""

from __future__ import annotations

from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Final

from pydanube_admin.engine.operation import Operation
from pydanube_admin.registry import OPERATIONS

OPENRPC_VERSION: Final = "1.3.2"

ERROR_SCHEMA: Final[dict[str, Any]] = {
    "type": "object",
    "properties": {
        "code": {"type": "string"},
        "message": {"type": "string"},
        "retryable": {"type": "boolean"},
        "retry_after_ms": {"type": "integer"},
        "details": {"type": "object"},
        "next": {"type": "array", "items": {"type": "object"}},
    },
    "required": ["code", "message", "retryable", "details", "next"],
}


@cache
def package_version() -> str:
    try:
        return version("pydanube")
    except PackageNotFoundError:  # run from a source tree that is not installed
        return "0"


@cache
def openrpc_document() -> dict[str, Any]:
    """The document; the caller must not change it."""
    return {
        "openrpc": OPENRPC_VERSION,
        "info": {
            "title": "pydanube",
            "version": package_version(),
            "description": "Administer a pydanube cluster. Calls by HTTP are POST /rpc and answered 200 whatever "
            "the result. Errors of operations have code -32000 and our error object in data.",
        },
        "methods": [_method(operation) for operation in OPERATIONS.values()],
        "components": {"schemas": {"ClusterError": ERROR_SCHEMA}},
    }


def _method(operation: Operation) -> dict[str, Any]:
    schema = operation.input_schema
    required = set(schema.get("required", ()))
    return {
        "name": operation.name,
        "summary": operation.summary,
        "tags": [{"name": operation.group}],
        "paramStructure": "by-name",
        "params": [
            {"name": name, "required": name in required, "schema": field}
            for name, field in schema["properties"].items()
        ],
        "result": {"name": "result", "schema": operation.output_schema},
        "errors": [{"code": -32000, "message": "an error of the operation: data.code says which"}],
        "examples": [
            {
                "name": example.note,
                "params": [{"name": name, "value": value} for name, value in example.arguments.items()],
            }
            for example in operation.examples
        ],
        "x-effect": operation.effect.value,
        "x-permission": operation.permission,
        "x-tool": operation.tool,
        "x-command": " ".join(("danube", *operation.words)),
    }
