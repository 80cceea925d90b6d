"""Identity and permission, as broker and admin core share them. Pure."""
