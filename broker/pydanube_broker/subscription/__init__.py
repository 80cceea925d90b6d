"""The subscription: a pure state machine that assigns messages to consumers. `delivery` executes it."""
