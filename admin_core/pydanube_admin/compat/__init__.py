"""The admin plane of the original, `danube_admin` over gRPC, as calls of our operations."""
