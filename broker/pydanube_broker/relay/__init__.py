"""Hold client calls that this broker cannot serve while their topic moves, and relay them to its owner."""
