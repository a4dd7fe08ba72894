"""schema: checks JSON schemas and writes the grammars that enforce them.

    translated = schema_to_lark({"type": "array", "items": {"enum": ["a", "b"]}}, strict=True)
    translated.lark         # a grammar for llguidance, as a whole
    translated.loosened     # what it does not enforce; empty if strict

A schema becomes formulas (reader.py, keywords*.py), their alternatives (expansion.py), pieces of
one kind each (builder.py), and rules (grammar.py, objects.py, arrays.py, numbers_text.py,
strings.py). Every text that the grammar accepts is valid; what a grammar cannot say is refused by
name.
"""

from .translate import Translated, schema_to_lark

__all__ = ["Translated", "schema_to_lark"]
