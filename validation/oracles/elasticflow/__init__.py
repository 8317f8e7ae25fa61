"""ElasticFlow's simulator: slots, ends rounded up, overheads; and the policies that its authors compared in it."""
