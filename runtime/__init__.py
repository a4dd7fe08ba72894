"""runtime: what runs a model: its parameters, what fits where, the engine, tokens to text."""
