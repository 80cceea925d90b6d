"""Protobuf: compiles `.proto` text, compares descriptors by numbers and wire types, and checks payloads against them."""
