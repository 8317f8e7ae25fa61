"""Several real ranks in one virtual world: what they say to each other, and when each comes where."""
