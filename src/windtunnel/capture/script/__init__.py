"""A real PyTorch script, run as one rank of a virtual world: what it executes, without its cluster."""
