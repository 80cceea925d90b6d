"""Protobuf modules made by tools/gen_protos.py from the sources in pydanube_core/proto; do not edit `*_pb2*`.

They live in a descriptor pool of their own (`_pool`), so that the official `danube` package, which registers the
same symbols in the default pool, can be imported into the same process before or after them.
"""
