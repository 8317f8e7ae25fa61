"""What makes GPUs, links or moments unlike each other, and what it does to a step."""
