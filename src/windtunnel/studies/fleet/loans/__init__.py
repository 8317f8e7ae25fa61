"""Training on servers of its own and on servers that a serving pool lends: Lyra's policy on the event loop."""
