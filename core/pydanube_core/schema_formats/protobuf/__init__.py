"""Protobuf: protoc, descriptors, and messages read by them."""
