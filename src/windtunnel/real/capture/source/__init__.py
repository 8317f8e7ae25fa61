"""What the source of a captured script says, read and never run: conditions, loops, branches, tests of the rank."""
