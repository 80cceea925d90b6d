"""Receive deliveries: what a consumer or reader asks for, gets, hands out and acknowledges."""
