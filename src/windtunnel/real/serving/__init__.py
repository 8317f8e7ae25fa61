"""A small real engine on PyTorch that the same batching policies drive, and what is predicted of it."""
