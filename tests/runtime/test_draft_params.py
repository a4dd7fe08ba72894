"""The options of speculation."""

from __future__ import annotations

from typing import Any

import pytest

from lamella.base.errors import RequestError
from lamella.runtime.params import RequestParams, without_aliases
from lamella.runtime.speculative_params import SpecType, parse_rates, parse_types


def test_types() -> None:
    assert parse_types("ngram-mod, ngram-simple") == (SpecType.NGRAM_MOD, SpecType.NGRAM_SIMPLE)
    assert parse_types("ngram-map-k,ngram-simple") == (SpecType.NGRAM_SIMPLE,)
    assert RequestParams.make({"spec_type": ["none"]}).speculative.is_on is False
    assert RequestParams.make({"spec_type": "auto"}).speculative.is_on is True
    assert RequestParams.make({"spec_n_max": 0}).speculative.is_on is False


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"spec_type": "draft-eagle3"}, "spec_type: draft-eagle3 is not supported: "),
        ({"spec_type": "ngram-map-k4v"}, "spec_type: ngram-map-k4v is not supported: "),
        ({"spec_type": "ngram"}, "spec_type: 'ngram' is not one of none, auto, ngram-simple, "),
        ({"spec_type": "none,auto"}, "spec_type: 'none,auto': none cannot be combined"),
        ({"spec_type": 3}, "spec_type"),
        ({"spec_n_max": 64}, "spec_n_max"),
        ({"spec_p_min": 1.5}, "spec_p_min"),
        ({"spec_synth_rates": [0.5, 2]}, "spec_synth_rates"),
        ({"spec_synth_rates": [0.5] * 64}, "spec_synth_rates"),
        ({"spec_synth_rates": "0.5"}, "spec_synth_rates"),
    ],
)
def test_invalid_values(given: dict[str, Any], message: str) -> None:
    with pytest.raises(RequestError) as error:
        RequestParams.make(given)
    assert str(error.value).startswith(message)


def test_llama_server_s_names_of_a_request() -> None:
    given = {"speculative.n_max": 3, "speculative.n_min": 1, "speculative.p_min": 0.5}
    params = RequestParams.make(without_aliases({**given, "speculative.type": "ngram-mod"}))
    own = params.speculative
    assert (own.spec_n_max, own.spec_n_min, own.spec_p_min) == (3, 1, 0.5)
    assert own.spec_type == (SpecType.NGRAM_MOD,)
    with pytest.raises(RequestError, match=r"speculative\.n_max"):
        without_aliases({"speculative.n_max": -1})


def test_rates_of_the_command_line() -> None:
    assert parse_rates("0.9, 0.5") == (0.9, 0.5)
    with pytest.raises(ValueError, match="must be numbers"):
        parse_rates("0.9,x")
