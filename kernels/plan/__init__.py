"""plan: what turns the nodes of a split into the steps of a plan. All backends share it."""
