"""When the running script is let go on after a communication, on a CPU and in the streams of a GPU."""
