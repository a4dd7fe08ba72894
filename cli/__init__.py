"""cli: the commands of `lamella`."""
