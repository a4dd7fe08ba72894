"""Selection of a repository's files by `user/repo:quant`."""

from __future__ import annotations

import pytest

from lamella.base.errors import DownloadError, RequestError
from lamella.model.hub.files import HubFile, HubModel, candidates, choose, parse_model, quant_of

GIB = 1 << 30


def files(*names: str) -> list[HubFile]:
    return [HubFile(name, (i + 1) * GIB) for i, name in enumerate(names)]


def chosen(wanted: str, *names: str, file: str = "") -> list[str]:
    return [f.name for f in choose(files(*names), parse_model(wanted, file), "u/r").files]


@pytest.mark.parametrize(
    ("text", "model"),
    [
        ("user/repo", HubModel("user/repo")),
        ("user/repo:Q8_0", HubModel("user/repo", "Q8_0")),
        ("a_b/Qwen2.5-0.5B-GGUF:ud-q4_k_xl", HubModel("a_b/Qwen2.5-0.5B-GGUF", "ud-q4_k_xl")),
    ],
)
def test_names(text: str, model: HubModel) -> None:
    assert parse_model(text) == model
    assert str(model) == text


@pytest.mark.parametrize(
    "text",
    [
        *("", "repo", "user/", "/repo", "a/b/c", "u/r:", "u/r:q:q", "u/..", "../r", "u/a--b"),
        *("u/-r", "u/r.", "u/r r", "https://huggingface.co/u/r", "u/" + 95 * "r", "u/ré"),
    ],
)
def test_invalid_names(text: str) -> None:
    with pytest.raises(RequestError, match="must be USER/REPO or USER/REPO:QUANT"):
        parse_model(text)


@pytest.mark.parametrize(
    ("name", "quant"),
    [
        ("Llama-3.2-1B-Instruct-Q4_K_M.gguf", "Q4_K_M"),
        ("qwen2-0_5b-instruct-q8_0.gguf", "Q8_0"),
        ("model.Q5_K_S.GGUF", "Q5_K_S"),
        ("m-IQ2_XXS.gguf", "IQ2_XXS"),
        ("m-IQ4_NL.gguf", "IQ4_NL"),
        ("m-UD-Q4_K_XL.gguf", "UD-Q4_K_XL"),
        ("m-Q4_0_4_4.gguf", "Q4_0_4_4"),
        ("m-TQ1_0.gguf", "TQ1_0"),
        ("gpt-oss-20b-MXFP4.gguf", "MXFP4"),
        ("m-bf16.gguf", "BF16"),
        ("m-fp16.gguf", "FP16"),
        ("f32/model.gguf", "F32"),
        ("Q8_0/m-Q6_K.gguf", "Q6_K"),
        ("m-Q4_K_M-imat.gguf", "Q4_K_M"),
        ("of-f16-made-Q4_0.gguf", "Q4_0"),
        ("model.gguf", ""),
        ("qwen2-0.5b.gguf", ""),
        ("stories260K.gguf", ""),
    ],
)
def test_the_quant_in_a_name(name: str, quant: str) -> None:
    assert quant_of(name) == quant


@pytest.mark.parametrize("quant", ["Q4_K_M", "q4_k_m", "Q4_k_M"])
def test_a_quant_in_any_case(quant: str) -> None:
    assert chosen(f"u/r:{quant}", "m-q4_k_s.gguf", "M-Q4_K_M.gguf") == ["M-Q4_K_M.gguf"]


def test_a_quant_does_not_match_a_longer_one() -> None:
    names = ["m-Q4_0_4_4.gguf", "m-Q4_K_M.gguf", "m-IQ4_0.gguf"]
    for quant in ("Q4_0", "Q4_K", "Q4", "4_0"):
        with pytest.raises(DownloadError, match=f"has no {quant}; available:"):
            chosen(f"u/r:{quant}", *names)
    assert chosen("u/r:Q4_0", *names, "m-Q4_0.gguf") == ["m-Q4_0.gguf"]


def test_a_plain_quant_is_preferred_to_a_variant() -> None:
    names = ["m-UD-Q4_K_M.gguf", "m-Q4_K_M.gguf", "m-UD-Q4_K_XL.gguf"]
    assert chosen("u/r:Q4_K_M", *names) == ["m-Q4_K_M.gguf"]
    assert chosen("u/r:UD-Q4_K_M", *names) == ["m-UD-Q4_K_M.gguf"]
    assert chosen("u/r:Q4_K_XL", *names) == ["m-UD-Q4_K_XL.gguf"]


def test_an_unknown_quant_is_searched_in_names() -> None:
    assert chosen("u/r:dynamic", "m-Dynamic-v2.gguf", "m-Q8_0.gguf") == ["m-Dynamic-v2.gguf"]
    assert chosen("u/r:large", "large/m.gguf", "small/m.gguf") == ["large/m.gguf"]


def test_without_a_quant() -> None:
    assert chosen("u/r", "m-BF16.gguf", "m-Q4_K_M.gguf") == ["m-Q4_K_M.gguf"]
    choice = choose(files("m-Q8_0.gguf", "m-Q6_K.gguf"), HubModel("u/r"), "u/r")
    assert [f.name for f in choice.files] == ["m-Q6_K.gguf"]
    assert choice.note == "u/r has no Q4_K_M: using m-Q6_K.gguf (2.00 GiB)"
    assert choose(files("m-Q4_K_M.gguf"), HubModel("u/r"), "u/r").note == ""


def test_projectors_and_importance_matrices_are_not_models() -> None:
    others = ["a-mmproj-Q4_K_M.gguf", "mmproj-F16.gguf", "imatrix.gguf", "m.imatrix.gguf"]
    assert chosen("u/r", *others, "README.md", "m-Q8_0.gguf") == ["m-Q8_0.gguf"]
    with pytest.raises(DownloadError, match="has no F16; available: Q8_0"):
        chosen("u/r:F16", *others, "m-Q8_0.gguf")
    # named after the imatrix that it was quantized with
    assert chosen("u/r", *others, "m-imatrix-Q4_K_M.gguf") == ["m-imatrix-Q4_K_M.gguf"]


def test_all_files_of_a_split_model_in_order() -> None:
    names = [f"Q8_0/m-Q8_0-0000{no}-of-00003.gguf" for no in (2, 3, 1)]
    assert chosen("u/r:q8_0", *names, "m-Q4_K_M.gguf") == sorted(names)
    for file in (names[0], "M-Q8_0-00003-of-00003.gguf"):
        assert chosen("u/r", *names, "m-Q4_K_M.gguf", file=file) == sorted(names)
    (candidate,) = candidates(files(*names))
    assert (candidate.label, candidate.size, candidate.is_whole) == ("Q8_0", 6 * GIB, True)


def test_an_incomplete_split_model() -> None:
    names = ["m-Q8_0-00001-of-00003.gguf", "m-Q8_0-00003-of-00003.gguf"]
    with pytest.raises(DownloadError, match=r"u/r has 2 of the 3 files of u/r:Q8_0"):
        chosen("u/r:Q8_0", *names)
    assert chosen("u/r", *names, "z-F16.gguf") == ["z-F16.gguf"]  # the only complete model


def test_a_file() -> None:
    names = ["a/m-Q4_K_M.gguf", "b/m-Q4_K_M.gguf", "b/n.gguf"]
    assert chosen("u/r:Q8_0", *names, file="b/m-Q4_K_M.gguf") == ["b/m-Q4_K_M.gguf"]
    assert chosen("u/r", *names, file="N.gguf") == ["b/n.gguf"]
    with pytest.raises(DownloadError, match=r"no model file m-Q4_K_M\.gguf; available: a/m-Q4_K_M"):
        chosen("u/r", *names, file="m-Q4_K_M.gguf")  # ambiguous
    with pytest.raises(DownloadError, match=r"no model file x\.gguf"):
        chosen("u/r", *names, file="x.gguf")


def test_several_models_of_a_quant() -> None:
    choice = choose(files("b-Q4_0.gguf", "x/a-Q4_0.gguf"), parse_model("u/r:Q4_0"), "u/r")
    assert [f.name for f in choice.files] == ["b-Q4_0.gguf"]
    assert choice.note.startswith("u/r has 2 models of Q4_0: using b-Q4_0.gguf")


def test_errors_list_the_available_models() -> None:
    with pytest.raises(DownloadError) as raised:
        chosen("u/r:Q3_K_M", "m-Q8_0.gguf", "a-F16.gguf", "b-F16.gguf", "plain.gguf")
    assert str(raised.value) == (
        "u/r has no Q3_K_M; available: a-F16.gguf (2.00 GiB), b-F16.gguf (3.00 GiB), "
        "Q8_0 (1.00 GiB), plain.gguf (4.00 GiB)"
    )
    with pytest.raises(DownloadError, match=r"and 5 more$"):
        chosen("u/r:Q3_K_M", *(f"m{i}-Q8_0.gguf" for i in range(35)))


def test_no_model_at_all() -> None:
    with pytest.raises(DownloadError, match=r"u/r has no GGUF model, but model\.safetensors"):
        chosen("u/r", "README.md", "model.safetensors")
    with pytest.raises(DownloadError, match="it is empty"):
        chosen("u/r")
