"""engine: many generations at once, one batch per step."""
