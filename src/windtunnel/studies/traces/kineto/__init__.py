"""PyTorch profiler traces."""
