"""Many jobs on one cluster: console and page."""
