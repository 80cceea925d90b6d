"""Written by tools/gen_admin_client.py from the declarations of the operations."""
