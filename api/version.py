"""The version, alone in its file so that packaging can read it without importing the rest."""

__version__ = "0.1.0"
