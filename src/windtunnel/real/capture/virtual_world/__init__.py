"""Torch.distributed without peers: one rank of any world, answered by what its peers would send."""
