"""Policies over GPUs that are not the site's own alone: on loan, in clouds, beside services."""
