"""Local SGD with a learning rate that decays over rounds and over local steps: pricing in `price`."""
