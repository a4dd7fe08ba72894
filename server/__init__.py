"""server: the engine that batches requests, and HTTP in front of it."""
