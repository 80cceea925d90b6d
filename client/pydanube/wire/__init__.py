"""Connections to brokers: addresses, TLS, tokens, our HTTP/2, and the streams of lanes over it."""
