"""A job of real processes that outlives its ranks: launcher, members, warm standbys. Needs torch."""
