"""Every use of what PyTorch does not promise to keep, by the part of PyTorch that it is about."""
