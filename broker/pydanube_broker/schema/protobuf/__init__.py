"""Protobuf: `.proto` text compiled, descriptors compared by numbers and wire types, payloads held against them."""
