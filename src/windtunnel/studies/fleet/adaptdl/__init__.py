"""The job model and the 60 s clock of AdaptDL's simulator, in which Pollux, Optimus and Tiresias were compared."""
