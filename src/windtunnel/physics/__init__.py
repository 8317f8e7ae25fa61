"""What a step costs and how it plays out: models, hardware, prices, graphs, the engine, one priced step."""
