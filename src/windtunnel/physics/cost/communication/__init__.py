"""How long one collective takes alone."""
