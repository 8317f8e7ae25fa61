"""Values that fields of a plan may take: what frameworks have, and how layers are dealt out to stages."""
