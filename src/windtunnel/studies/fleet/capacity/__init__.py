"""What a cluster has over time: nodes that fail and return, and free GPUs of a pool."""
