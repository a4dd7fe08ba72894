"""observe: what looks at a model and is not needed to run it: profile, bench, self-test, watch."""
