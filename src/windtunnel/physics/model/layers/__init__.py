"""What a layer computes on one rank: its ops in order, by part and as a whole."""
