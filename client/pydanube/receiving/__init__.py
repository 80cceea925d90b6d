"""Deliveries on their way in: what a consumer or reader asks for, is sent, hands out and acknowledges."""
