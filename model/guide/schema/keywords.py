"""All keywords that assert something, of all drafts: whatever the draft, none is ignored.

Tested by tests/model/test_guide_schema.py.
"""

from __future__ import annotations

from typing import Final

from . import keywords_nested as nested
from . import keywords_value as value
from .formulas import (
    ARRAY,
    NUMBERS,
    OBJECT,
    STRING,
)
from .reader import Keyword

# A `required` of draft 3 stands in the property itself, whatever its type.
KEYWORDS: Final[dict[str, Keyword]] = {
    "$ref": Keyword(value.ref),
    "$dynamicRef": Keyword(value.dynamic_ref),
    "$recursiveRef": Keyword(value.recursive_ref),
    "type": Keyword(value.type),
    "enum": Keyword(value.enum),
    "const": Keyword(value.const),
    "allOf": Keyword(value.all_of),
    "anyOf": Keyword(value.any_of),
    "oneOf": Keyword(value.one_of),
    "not": Keyword(value.not_),
    "if": Keyword(value.if_),
    "minimum": Keyword(value.minimum, NUMBERS),
    "maximum": Keyword(value.maximum, NUMBERS),
    "exclusiveMinimum": Keyword(value.exclusive, NUMBERS),
    "exclusiveMaximum": Keyword(value.exclusive, NUMBERS),
    "multipleOf": Keyword(value.multiple_of, NUMBERS),
    "minLength": Keyword(value.length, STRING),
    "maxLength": Keyword(value.length, STRING),
    "pattern": Keyword(value.pattern, STRING),
    "format": Keyword(value.format, STRING | NUMBERS),
    "items": Keyword(nested.items, ARRAY),
    "prefixItems": Keyword(nested.items, ARRAY),
    "additionalItems": Keyword(nested.items, ARRAY),
    "minItems": Keyword(nested.counted, ARRAY),
    "maxItems": Keyword(nested.counted, ARRAY),
    "uniqueItems": Keyword(nested.unique, ARRAY),
    "contains": Keyword(nested.contains, ARRAY),
    "properties": Keyword(nested.properties, OBJECT),
    "patternProperties": Keyword(nested.properties, OBJECT),
    "additionalProperties": Keyword(nested.properties, OBJECT),
    "required": Keyword(nested.required_names),
    "minProperties": Keyword(nested.counted, OBJECT),
    "maxProperties": Keyword(nested.counted, OBJECT),
    "propertyNames": Keyword(nested.property_names, OBJECT),
    "dependencies": Keyword(nested.dependencies, OBJECT),
    "dependentRequired": Keyword(nested.dependencies, OBJECT),
    "dependentSchemas": Keyword(nested.dependencies, OBJECT),
    "divisibleBy": Keyword(value.draft3, NUMBERS),
    "disallow": Keyword(value.draft3),
    "extends": Keyword(value.draft3),
}
