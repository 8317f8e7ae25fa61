"""What is held, by whom and for how long: a tree of resources, pools that own them, and leases."""
