"""What ranks that share parameters send each other: inside a pass, around it, and once in a step."""
