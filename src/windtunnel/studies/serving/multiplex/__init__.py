"""Several models on the same GPUs: MuxServe's units, AlpaServe's groups."""
