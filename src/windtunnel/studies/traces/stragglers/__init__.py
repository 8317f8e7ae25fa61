"""What stragglers cost: the step replayed as it would have been without them."""
