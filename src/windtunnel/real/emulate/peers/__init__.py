"""Virtual peers: when they come to a communication, what it takes, and what they hold."""
