"""Settings of the Hugging Face Trainer and of what has other names for them: read and written."""
