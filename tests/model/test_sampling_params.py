"""SamplingParams: llama-server's names, defaults, clamps and limits, and errors."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest

from lamella.base.errors import RequestError
from lamella.model.sampling import DEFAULT_SAMPLERS, SamplingParams, samplers_from_chars


def params(**values: Any) -> SamplingParams:
    return SamplingParams(**values)


def test_defaults_are_llama_server_s() -> None:
    assert dataclasses.asdict(SamplingParams()) == {
        "seed": -1,
        "temperature": 0.8,
        "dynatemp_range": 0.0,
        "dynatemp_exponent": 1.0,
        "top_k": 40,
        "top_p": 0.95,
        "min_p": 0.05,
        "typical_p": 1.0,
        "top_n_sigma": -1.0,
        "xtc_probability": 0.0,
        "xtc_threshold": 0.1,
        "repeat_last_n": 64,
        "repeat_penalty": 1.0,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "dry_multiplier": 0.0,
        "dry_base": 1.75,
        "dry_allowed_length": 2,
        "dry_penalty_last_n": 64,
        "dry_sequence_breakers": ("\n", ":", '"', "*"),
        "mirostat": 0,
        "mirostat_eta": 0.1,
        "mirostat_tau": 5.0,
        "adaptive_target": -1.0,
        "adaptive_decay": 0.9,
        "min_keep": 0,
        "logit_bias": (),
        "samplers": (
            *("penalties", "dry", "top_n_sigma", "top_k", "typ_p"),
            *("top_p", "min_p", "xtc", "temperature"),
        ),
    }


@pytest.mark.parametrize(
    ("name", "value", "becomes"),
    [
        ("temperature", -1.0, 0.0),
        ("top_k", -1, 0),
        ("top_k", 2**40, 2**31 - 1),
        ("top_p", 1.5, 1.0),
        ("top_p", -0.5, 0.0),
        ("min_p", 2, 1.0),
        ("min_p", -1, 0.0),
        ("xtc_probability", 7, 1.0),
        ("xtc_threshold", -7, 0.0),
        ("dry_base", 0.5, 1.75),
    ],
)
def test_values_are_clamped_as_in_llama_server(name: str, value: float, becomes: float) -> None:
    moved = getattr(params(**{name: value}), name)
    assert moved == becomes
    assert type(moved) is type(becomes)


@pytest.mark.parametrize(
    ("name", "value", "becomes"),
    [
        ("top_k", 40.0, 40),
        ("temperature", 1, 1.0),
        ("seed", 2**32 + 5, 2**32 + 5),
        (
            "logit_bias",
            [[3, False], (4, -math.inf), (5, 2)],
            ((3, -math.inf), (4, -math.inf), (5, 2.0)),
        ),
        ("dry_sequence_breakers", ["a"], ("a",)),
        ("dry_sequence_breakers", [], ()),
        ("samplers", [], ()),
        (
            "samplers",
            ["top-k", "topk", "nucleus", "typ", "typical-p", "temp", "top-n-sigma", "min_p"],
            ("top_k", "top_k", "top_p", "typ_p", "typ_p", "temperature", "top_n_sigma", "min_p"),
        ),
    ],
)
def test_values_are_converted_from_json_types(name: str, value: object, becomes: object) -> None:
    taken = getattr(params(**{name: value}), name)
    assert taken == becomes
    assert type(taken) is type(becomes)


INT32_MAX = 2**31 - 1


@pytest.mark.parametrize(
    ("name", "value", "allowed"),
    [
        ("top_k", "40", "a whole number"),
        ("top_k", True, "a whole number"),
        ("top_k", 1.5, "a whole number"),
        ("top_k", math.inf, "a whole number"),
        ("seed", None, "a whole number"),
        ("temperature", "hot", "a number"),
        ("temperature", True, "a number"),
        ("temperature", math.nan, "finite"),
        ("temperature", math.inf, "finite"),
        ("temperature", 1e39, "finite 32-bit"),
        ("top_p", 10**400, "finite 32-bit"),
        ("repeat_penalty", 0.0, "1.175494351e-38 to"),
        ("repeat_penalty", -1.0, "1.175494351e-38 to"),
        ("repeat_last_n", -1, f"0 to {INT32_MAX}"),
        ("repeat_last_n", 2**31, f"0 to {INT32_MAX}"),
        ("dry_allowed_length", -1, f"0 to {INT32_MAX}"),
        ("dry_penalty_last_n", -1, f"0 to {INT32_MAX}"),
        ("min_keep", -1, f"0 to {INT32_MAX}"),
        ("logit_bias", {"3": 1}, "pairs"),
        ("logit_bias", [3], "pairs"),
        ("logit_bias", [[3, 1, 1]], "pairs"),
        ("logit_bias", [["a", 1]], "a whole number"),
        ("logit_bias", [[3, True]], "a number"),
        ("logit_bias", [[3, math.inf]], "finite"),
        ("dry_sequence_breakers", "abc", "a list of at most 128 strings"),
        ("dry_sequence_breakers", [1], "a list of at most 128 strings"),
        ("dry_sequence_breakers", ["a"] * 129, "a list of at most 128 strings"),
        ("dry_sequence_breakers", [""], "not empty"),
        ("samplers", "kt", "a list of at most 64 strings"),
        ("samplers", ["top_k"] * 65, "a list of at most 64 strings"),
        ("samplers", ["top_q"], ", ".join(DEFAULT_SAMPLERS)),
    ],
)
def test_invalid_values_are_refused_by_name(name: str, value: object, allowed: str) -> None:
    with pytest.raises(RequestError) as error:
        params(**{name: value})
    assert str(error.value).startswith(f"{name} is ")
    assert allowed in str(error.value)


def test_messages_shorten_long_values() -> None:
    with pytest.raises(RequestError) as error:
        params(top_k="9" * 10_000)
    assert len(str(error.value)) < 100


def test_some_samplers_are_used_only_if_they_are_named() -> None:
    assert params(samplers=["adaptive-p", "infill"]).samplers == ("adaptive_p", "infill")
    assert not {"adaptive_p", "infill"} & set(params().samplers)
    with pytest.raises(RequestError, match="samplers is 'mirostat'"):  # it has a field of its own
        params(samplers=["mirostat"])
    with pytest.raises(RequestError, match="mirostat is 3"):
        params(mirostat=3)
    assert params(adaptive_decay=1.5).adaptive_decay == 0.99


def test_letters_name_samplers() -> None:
    assert samplers_from_chars("edskypmxt") == DEFAULT_SAMPLERS
    assert samplers_from_chars("tk") == ("temperature", "top_k")
    with pytest.raises(RequestError, match=r"samplers is 'z'.*k \(top_k\)"):
        samplers_from_chars("kz")
    assert samplers_from_chars("kia") == ("top_k", "infill", "adaptive_p")


def test_params_are_immutable() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        SamplingParams().top_k = 3  # type: ignore[misc]
