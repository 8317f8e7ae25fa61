"""What `fleet` and its verbs ask."""
