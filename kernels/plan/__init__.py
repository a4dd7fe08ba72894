"""plan: compiles the nodes of a split to the steps of a plan. All backends share it."""
