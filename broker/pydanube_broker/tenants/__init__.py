"""What each namespace and principal takes of this broker, and how much it may."""
