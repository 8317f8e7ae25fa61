"""A served model: console, page and trace."""
