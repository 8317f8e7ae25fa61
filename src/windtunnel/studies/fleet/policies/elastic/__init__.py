"""Policies that choose how many GPUs a job gets, or of which kind."""
