"""Slurm as an operator runs it: its configuration, the order of its queue, its plan of nodes, and the policy."""
