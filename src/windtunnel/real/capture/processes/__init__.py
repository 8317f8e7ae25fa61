"""The processes that play the ranks of a captured job."""
