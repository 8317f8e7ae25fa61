"""What is least, where it is not the step on one calm type of GPU."""
