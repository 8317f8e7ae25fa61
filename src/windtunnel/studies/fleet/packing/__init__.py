"""Packing of pods with fractions of GPUs onto unlike nodes, and the GPU fragments that are left."""
