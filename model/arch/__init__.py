"""arch: one file for each model architecture."""
