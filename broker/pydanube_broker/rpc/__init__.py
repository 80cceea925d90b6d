"""gRPC on the broker's side: the shape of hot handlers, and the server that presents them."""
