"""What a rank holds over the step, from what its passes allocate and free."""
