"""The subscription: a pure state machine that decides who gets which message; `delivery` acts on it."""
