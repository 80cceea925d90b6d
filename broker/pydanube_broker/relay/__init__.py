"""Calls of clients that this broker cannot serve: held while their topic moves, and carried out by the broker that can."""
