"""The models of `--models-dir` and `--models-preset`, with the flags of their processes."""

from __future__ import annotations

import logging
from functools import cache
from pathlib import Path

import pytest

from lamella.base.errors import RequestError
from lamella.cli.main import command_parser
from lamella.cli.presets import PresetReader
from lamella.server.router.config import RouterConfig
from lamella.server.router.preset import Preset


@cache
def reader() -> PresetReader:
    return PresetReader(command_parser("serve"))


def presets(tmp_path: Path, ini: str = "", files: str = "", **options: int) -> dict[str, Preset]:
    """The presets of a file with this text, and of a folder with these files."""
    given: dict[str, object] = dict(options)
    if ini:
        path = tmp_path / "models.ini"
        path.write_text(ini.format(folder=tmp_path))
        given["models_preset"] = str(path)
    folder = tmp_path / "models"
    folder.mkdir(exist_ok=True)
    for name in files.split():
        (folder / name).touch()
    if files:
        given["models_dir"] = str(folder)
    found = reader().presets(RouterConfig.make(given))
    return {preset.name: preset for preset in found}


def test_models_of_a_folder(tmp_path: Path) -> None:
    found = presets(tmp_path, files="a.gguf b.gguf", sleep_idle_seconds=7)
    path = str(tmp_path / "models" / "a.gguf")
    assert found["a"] == Preset(
        name="a", source=path, flags=(f"--model={path}",), sleep_idle_seconds=7
    )
    assert list(found) == ["a", "b"]


def test_keys_are_flags(tmp_path: Path) -> None:
    ini = """
    [a]
    c = 512
    n-gpu-layers = 3
    LLAMA_ARG_THREADS = 2
    no-ui = true
    no-warmup = true
    no-mmap = true
    no-cont-batching = off
    embeddings = on
    fa = auto
    """
    flags = presets(tmp_path, ini, "a.gguf")["a"].flags
    assert flags[:3] == ("--ctx-size=512", "--n-gpu-layers=3", "--threads=2")
    assert flags[3:] == ("--embedding", f"--model={tmp_path}/models/a.gguf")


def test_a_section_wins_over_the_shared_one(tmp_path: Path) -> None:
    ini = "threads = 1\n[*]\nc = 64\nload-on-startup = 1\n[a]\nc = 128\nload-on-startup = no\n"
    found = presets(tmp_path, ini, "a.gguf b.gguf")
    assert found["a"].flags[:2] == ("--threads=1", "--ctx-size=128")
    assert found["b"].flags[:2] == ("--threads=1", "--ctx-size=64")
    assert (found["a"].load_on_startup, found["b"].load_on_startup) == (False, True)


def test_a_model_of_a_section_replaces_a_shared_one_of_any_kind(tmp_path: Path) -> None:
    ini = "[*]\nhf = org/model\n[a]\nmodel = {folder}/a.gguf\n[b]\n"
    (tmp_path / "a.gguf").touch()
    found = presets(tmp_path, ini)
    assert found["a"].flags == (f"--model={tmp_path}/a.gguf",)
    assert found["b"].flags == ("--hf-repo=org/model",)


def test_keys_that_are_no_flags_of_the_process(tmp_path: Path) -> None:
    ini = "[a]\nalias = x, y,a\nstop-timeout = 3\nsleep-idle-seconds = 9\nload-on-startup = on\n"
    found = presets(tmp_path, ini, "a.gguf", sleep_idle_seconds=1)["a"]
    assert (found.aliases, found.stop_timeout, found.sleep_idle_seconds) == (("x", "y"), 3, 9)
    assert found.load_on_startup
    assert len(found.flags) == 1


def test_the_memory_of_a_prompt_cache_is_a_model_s_own_if_its_preset_sets_it(
    tmp_path: Path,
) -> None:
    (tmp_path / "models").mkdir()
    for name in "ab":
        (tmp_path / "models" / f"{name}.gguf").touch()
    ini = tmp_path / "a.ini"
    ini.write_text("[a]\ncram = 100\n")
    config = RouterConfig.make({"models_dir": str(tmp_path / "models"), "models_preset": str(ini)})
    found = {preset.name: preset.has_own_cache for preset in reader().presets(config)}
    assert found == {"a": True, "b": False}
    typed = PresetReader(command_parser("serve"), shares_cache=True).presets(config)
    assert not any(preset.has_own_cache for preset in typed)


def test_a_name_on_the_hub_needs_no_model(tmp_path: Path) -> None:
    found = presets(tmp_path, "[org/model-GGUF:Q8_0]\n")
    assert found["org/model-GGUF:Q8_0"].flags == ("--model=org/model-GGUF:Q8_0",)


def test_flags_of_the_router_have_no_effect(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "lamella"):
        found = presets(
            tmp_path, "[a]\nport = 1\napi-key = x\nslot-prompt-similarity = 1\n", "a.gguf"
        )
    assert [flag for flag in found["a"].flags if "port" in flag or "key" in flag] == []
    lines = [record.getMessage() for record in caplog.records]
    path = tmp_path / "models.ini"
    assert f"{path}:2: port has no effect: the router decides it" in lines
    assert any(line.startswith(f"{path}:4: slot-prompt-similarity has no effect") for line in lines)


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("ctx-sice = 1", "ctx-sice: unknown key; did you mean -c/--ctx-size?"),
        ("zzz = 1", "zzz: unknown key"),
        ("c = many", "c: 'many' is not a whole number"),
        ("c = -5", "-c/--ctx-size is -5: must be 0 to"),
        ("embeddings = perhaps", "embeddings: 'perhaps' is not one of on"),
        ("temp = nan", "--temperature is nan"),
        ("reasoning = maybe", "reasoning: "),
        ("stop-timeout = -1", "stop-timeout: -1 must be 0 to 3600"),
        ("load-on-startup = 7", "load-on-startup: '7' is not one of on"),
        ("rpc = host", "rpc: not supported yet"),
        ("sleep-idle-seconds = -2", "--sleep-idle-seconds is -2"),
    ],
)
def test_errors_name_the_line_and_the_key(tmp_path: Path, line: str, complaint: str) -> None:
    with pytest.raises(RequestError) as caught:
        presets(tmp_path, f"[a]\n\n{line}\n", "a.gguf")
    found = str(caught.value).removeprefix(f"{tmp_path / 'models.ini'}:3: ")
    assert complaint in found, caught.value


@pytest.mark.parametrize(
    ("ini", "complaint"),
    [
        ("[a]\nc = 1\n", r"models.ini:1: \[a\] needs a model"),
        ("\n[a]\nmodel = /none/a.gguf\n", r"models.ini:2: \[a\]: there is no file /none/a.gguf"),
        ("[*]\nc = 1\n", "has no model"),
        ("[org/a]\nalias = x\n[org/b]\nalias = x\n", "'x' stands for two models"),
    ],
)
def test_bad_sections(tmp_path: Path, ini: str, complaint: str) -> None:
    with pytest.raises(RequestError, match=complaint):
        presets(tmp_path, ini)


def test_an_empty_folder(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="has no model"):
        presets(tmp_path, files="notes.txt")
