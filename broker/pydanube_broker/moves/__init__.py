"""A topic's move between brokers: its steps, the leader's and the owner's part, and the removal of brokers."""
