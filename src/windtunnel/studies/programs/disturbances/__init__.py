"""Disturbances of a recorded program: each rank by itself, and who waits for whom as the program says."""
