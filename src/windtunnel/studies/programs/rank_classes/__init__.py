"""Which ranks run the same program, from a few that were recorded."""
