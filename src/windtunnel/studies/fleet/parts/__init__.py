"""Parts of GPUs: what jobs may ask for, by name, and the GPUs that hold them."""
