"""Identity and permissions, shared by broker and admin core. Pure."""
