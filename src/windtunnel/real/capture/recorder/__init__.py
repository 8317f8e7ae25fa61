"""What a script executes, op by op, written down as the program of one rank."""
