"""Calls of clients that this broker cannot serve: held while their topic moves, and relayed to its owner."""
