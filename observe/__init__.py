"""observe: measures and inspects models; not needed to run them: profile, bench, self-test,
watch."""
