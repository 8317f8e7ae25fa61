"""The clock of ElasticFlow's simulator, and the policies as its authors compared them: EDF, Gandiva, Tiresias, ElasticFlow."""
