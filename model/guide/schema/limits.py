"""The limits of a schema's translation, and the counter that enforces them.

They bound time, memory and recursion for any schema. Every limit is a named constant, and every
error names the limit that the schema exceeds. Tested by tests/model/test_guide_schema_errors.py.
"""

from __future__ import annotations

import math
from typing import Final

from ....base.errors import GrammarError

SCHEMA_DEPTH: Final = 200  # nested arrays and objects in the schema's JSON
NUMBER_MAX: Final = 10**1000
SCHEMA_NODES: Final = 100_000  # JSON values in the schema
STEPS: Final = 250_000  # formulas looked at while rewriting; about 2 us each
ALTERNATIVES: Final = 512  # forms of one value: the product of its anyOf, oneOf and if
STATE_DEPTH: Final = 6  # how deep an option is looked into before it is multiplied out
SUBSETS_MAX: Final = 4  # branches of an anyOf whose every combination is kept for unevaluated...
RULES: Final = 20_000  # rules of the grammar
GRAMMAR_CHARS: Final = 2_000_000  # the grammar's text
VALUE_CHARS: Final = 200_000  # all values of all enums, as JSON
PATTERN_CHARS: Final = 5_000  # the text of one pattern
PATTERN_NODES: Final = 5_000  # parts of one pattern, each counted once
PATTERN_DEPTH: Final = 40  # nested groups of one pattern
ANCHORED_GROUPS: Final = 200  # alternatives of groups with anchors inside
PATTERN_REPEATS: Final = 20_000  # the product of nested repetitions in a pattern
PATTERN_MATCH_STEPS: Final = 50_000  # matching one pattern against one text
PATTERN_CHECKS: Final = 60  # questions whether a string can satisfy several patterns
LENGTH_MAX: Final = 1_000_000  # minLength and maxLength
MEMBERS_MAX: Final = 3_000  # properties of one object; each has 10 symbols, of which 30,000 fit
OPTIONAL_MAX: Final = 1_000  # of them: after a brace each takes 3 items of llguidance's row
COUNT_MAX: Final = 100_000  # minItems, maxItems, minProperties, maxProperties
COUNTED_STATES: Final = 4_000  # items (or properties) times counts where items are counted by kind
KEY_CLASSES: Final = 32  # combinations of patternProperties that a key can match
LOOSENED_MAX: Final = 50  # keywords of a schema that is not strict
UNIQUE_VALUES: Final = 60  # values of an array whose items are unique
DISJOINT_DEPTH: Final = 6  # nesting of proofs that two schemas have no common value
DISJOINT_BRANCHES: Final = 64  # branches of a oneOf

# At most one newline with its indentation, or two blanks: what pretty-printers write, and too
# little for a model to loop on.
WHITESPACE: Final = r"[ \t]{1,2}|\r?\n[ \t]{0,40}"


class Budget:
    """Counts the work for one schema; raises GrammarError past the limit."""

    def __init__(self) -> None:
        self.steps = STEPS
        self.checks = PATTERN_CHECKS
        self.values = VALUE_CHARS

    def spend(self, n: int = 1) -> None:
        self.steps -= n
        if self.steps < 0:
            raise GrammarError(
                "the schema is too complex: rewriting it takes more than"
                f" {STEPS} steps; use fewer or smaller anyOf, oneOf, allOf, not and if"
            )

    def take_check(self) -> bool:
        """True if one more pattern check is allowed."""
        self.checks -= 1
        return self.checks >= 0

    def spend_values(self, chars: int) -> None:
        self.values -= chars
        if self.values < 0:
            raise GrammarError(
                f"the schema is too large: its enums have more than {VALUE_CHARS} characters"
            )


def check_size(schema: object) -> None:
    """Raise GrammarError if the schema has too many JSON values or nests too deeply."""
    level = [schema]
    n = depth = 0
    while level:
        n += len(level)
        if n > SCHEMA_NODES:
            raise GrammarError(f"the schema is too large: more than {SCHEMA_NODES} JSON values")
        if depth > SCHEMA_DEPTH:
            raise GrammarError(
                f"the schema is too deep: more than {SCHEMA_DEPTH} nested arrays and objects"
            )
        depth += 1
        below: list[object] = []
        for value in level:
            if isinstance(value, dict):
                below.extend(value.values())
            elif isinstance(value, list):
                below.extend(value)
            elif isinstance(value, float) and not math.isfinite(value):
                raise GrammarError("the schema has a number that is not finite")
            elif isinstance(value, int) and abs(value) > NUMBER_MAX:
                raise GrammarError("the schema has a number of more than 1,000 digits")
        level = below
