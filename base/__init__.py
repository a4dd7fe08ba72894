"""base: the error tree, the switchboard of settings, logging. Knows nothing else of Lamella."""
