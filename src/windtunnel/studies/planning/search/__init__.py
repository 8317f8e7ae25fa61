"""The search over a space of plans: bounds of what was not tried, what does not fit, the best plan and its proof."""
