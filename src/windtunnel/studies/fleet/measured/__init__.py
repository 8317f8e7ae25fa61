"""Applications of AdaptDL's measured tables: how fast they train on a placement, and how far a step takes them."""
