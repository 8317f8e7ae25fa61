"""The clock of ElasticFlow's simulator, and the policies that its authors compared in it."""
