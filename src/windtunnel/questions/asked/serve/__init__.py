"""What `serve` and its verbs ask."""
