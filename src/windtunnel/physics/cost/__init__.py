"""How long one op or one collective takes alone, and how much two slow each other down. Never knows the clock."""
