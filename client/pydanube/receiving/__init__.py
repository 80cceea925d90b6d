"""Receive deliveries: credit, handing out, and acknowledgements of consumers and readers."""
