"""base: the error tree, options, settings, logging, units. Does not know the other rooms."""
