"""What slow GPUs, links and noise do to a planned step."""
