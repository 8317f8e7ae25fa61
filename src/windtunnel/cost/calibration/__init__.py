"""Fitted constants as data: each file says on what it was fitted, and when."""
