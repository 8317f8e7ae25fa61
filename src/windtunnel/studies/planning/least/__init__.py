"""What plans take and need at least, by what the training study prices: nothing here is replayed."""
