"""A study: many jobs on one cluster."""
