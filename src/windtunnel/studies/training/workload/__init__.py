"""Work that is not even: routed experts and packed sequences."""
