"""sim: simulated devices."""
