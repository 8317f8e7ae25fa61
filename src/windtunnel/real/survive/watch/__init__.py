"""Who hangs and who is slow, from logs that outlive their writers."""
