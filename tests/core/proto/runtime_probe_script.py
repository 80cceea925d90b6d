"""Run in a process of its own by test_protobuf_runtimes: every message by hand, on the runtime of that process.

Prints one JSON object: runtime version, implementation, number of messages and of bytes compared.
"""

from __future__ import annotations

import json

import google.protobuf
from google.protobuf.internal import api_implementation
from pydanube_core import services
from pydanube_core.generated import (
    danube_admin_pb2,
    danube_ops_pb2,
    danube_pb2,
    danube_schema_pb2,
    danube_stream_pb2,
)

from tests.core.proto.wire_contract import check_message, facts_of, read_tables

MODULES = (danube_pb2, danube_schema_pb2, danube_admin_pb2, danube_stream_pb2, danube_ops_pb2)


def main() -> None:
    tables = read_tables()
    compared = messages = 0
    for module in MODULES:
        facts = tables.get(module.DESCRIPTOR.package) or facts_of(module.DESCRIPTOR)
        for name in facts.messages:
            compared += check_message(facts, name, getattr(module, name))
            messages += 1
    print(
        json.dumps(
            {
                "runtime": google.protobuf.__version__,
                "implementation": api_implementation.Type(),
                "messages": messages,
                "bytes_compared": compared,
                "methods": sum(
                    len(one.methods) for one in vars(services).values() if isinstance(one, services.Service)
                ),
            }
        )
    )


if __name__ == "__main__":
    main()
