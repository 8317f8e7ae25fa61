"""Tensors with shapes and no data, and the GPU that a script is told it has."""
