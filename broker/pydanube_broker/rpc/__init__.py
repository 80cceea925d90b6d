"""How calls reach the broker: the shape of hot handlers, and the server that presents them."""
