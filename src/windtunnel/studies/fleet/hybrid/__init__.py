"""Own GPUs and clouds beside them: prices, egress, data that lies somewhere, and jobs that must not leave."""
