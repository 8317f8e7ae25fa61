"""MegaScale's overlap set: features as changes of model and plan in `features`."""
