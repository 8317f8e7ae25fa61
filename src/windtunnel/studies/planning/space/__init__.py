"""The space of plans: which values each field may take, what frameworks have, how layers are dealt out to stages."""
