"""A Result: on one screen, as a page, as JSON, as a trace."""
