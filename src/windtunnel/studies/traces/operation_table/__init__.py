"""Tables with one row per op."""
