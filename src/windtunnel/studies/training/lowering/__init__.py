"""A plan as passes of model chunks, and a step that strings them together."""
