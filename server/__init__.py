"""server: HTTP in front of the engine."""
