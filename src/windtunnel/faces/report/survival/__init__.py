"""What failures cost a job, on the console and as a page."""
