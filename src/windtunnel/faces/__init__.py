"""What a person touches: the command line, the page, the reports."""
