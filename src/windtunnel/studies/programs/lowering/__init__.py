"""Programs of rank classes as one priced graph."""
