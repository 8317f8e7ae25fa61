"""Training on spot machines: recorded availability, and what policies do with it."""
