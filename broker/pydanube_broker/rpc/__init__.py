"""How calls reach the broker: the shape of hot handlers, and the servers that present them."""
