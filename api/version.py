"""The version, in a file of its own: packaging reads it without importing the rest."""

__version__ = "0.1.0"
