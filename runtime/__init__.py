"""runtime: opens and runs a model: parameters, planning, the engine, tokens to text."""
