"""Real schemas with instances: valid ones are accepted, invalid ones refused."""

from __future__ import annotations

import json

import pytest
from golden_data import SHARED
from schemas import SchemaGrammar

from lamella import GrammarError

GIVEN = SHARED / "chat" / "given_schemas.jsonl"
# what is not enforceable, and a value whose keys are in another order than the schema's
REFUSED = {"jsonschemabench:JsonSchemaStore---bootstraprc": "`uniqueItems` at "}
OTHER_ORDER = {"jsonschemabench:MCPspec---CreateMessageResult"}


@pytest.mark.skipif(not GIVEN.exists(), reason="no shared test data")
def test_given_schemas() -> None:
    refused = {}
    for line in GIVEN.read_text().splitlines():
        case = json.loads(line)
        try:
            grammar = SchemaGrammar(case["schema"])
        except GrammarError as error:
            refused[case["id"]] = str(error)
            continue
        for value in case["valid"]:
            assert grammar.accepts_value(value) or case["id"] in OTHER_ORDER, (case["id"], value)
        for value in case["invalid"]:
            assert not grammar.accepts_value(value), (case["id"], value)
    assert refused.keys() == REFUSED.keys()
    for name, message in REFUSED.items():
        assert message in refused[name]
