"""Each family of config.json, read into a Model."""
