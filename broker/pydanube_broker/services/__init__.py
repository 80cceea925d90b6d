"""The broker's gRPC services: those of official clients, the streams of our SDK, and the schema registry."""
