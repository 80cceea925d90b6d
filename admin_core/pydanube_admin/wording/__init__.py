"""What people call things, and which operation they mean."""
