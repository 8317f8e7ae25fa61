"""What torch.compile would make of a captured region: fused kernels and collectives beside them."""
