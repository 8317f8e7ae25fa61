"""A study: many jobs on one cluster, and the schedulers that share it among them."""
