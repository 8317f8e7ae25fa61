"""Many models whose weights lie in a pool of memory: DistMind beside fixed places and cold starts."""
