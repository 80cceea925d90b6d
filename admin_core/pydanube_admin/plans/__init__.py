"""Plans: what a change would do, bound to who asked, to its arguments and to the state it was worked out from."""
