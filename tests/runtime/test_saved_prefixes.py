"""Prefixes saved by one process and restored by another: the same bits, or a refusal."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from threading import Thread

import numpy as np
import pytest
from control_vectors import write_control
from matrix import combinations
from open_params import open_params
from tiny_models import TINY, write_model
from window_models import write_window_model

from lamella.base.errors import ModelFileError, OutOfMemoryError, RequestError
from lamella.graph import GGMLType
from lamella.model.kv_prefix import PrefixIdentity
from lamella.model.sampling import TokenLogprob
from lamella.runtime.instance import Instance
from lamella.runtime.open import open_instance
from lamella.runtime.params import OpenParams, RequestParams
from lamella.runtime.saved_prefix import forget_prefix, restore_prefix, save_prefix
from lamella.runtime.text import generate

PROMPT = [1, *(3 + i * 7 % 250 for i in range(150))]
PLACEMENTS = {
    "cpu": open_params("", devices=("none",)),
    "cpu-q8": open_params("", devices=("none",), type_k="q8_0", type_v="q8_0"),
    "sim+cpu": open_params("", devices=("sim",), n_gpu_layers=1, op_offload=False),
}


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model") / "tiny.gguf"
    write_model(TINY["llama"], path, GGMLType.Q8_0)
    return path


def run(
    instance: Instance, prompt: Sequence[int], *, cache_prompt: bool = True
) -> tuple[int, list[tuple[TokenLogprob, ...]]]:
    """The number of cached tokens, and the exact probabilities at each position."""
    how = {"temperature": 0, "n_predict": 5, "ignore_eos": True, "cache_prompt": cache_prompt}
    made = generate(instance.engine, instance.vocab, prompt, RequestParams.make(how), n_probs=9)
    probs = [(at.chosen, *at.top) for piece in made for at in piece.probs]
    return made.result.n_cached, probs


def opened(params: OpenParams, path: Path, **more: object) -> OpenParams:
    return params.change(path=path, n_ctx=256, n_ubatch=32, **more)


@pytest.mark.parametrize(("placement", "has_windows"), combinations(PLACEMENTS, [False, True]))
def test_a_restored_prefix_changes_no_bit(
    tmp_path: Path, path: Path, placement: str, has_windows: bool
) -> None:
    if has_windows:
        path = tmp_path / "window.gguf"
        write_window_model(path, n_swa=40)
    params, file = opened(PLACEMENTS[placement], path), tmp_path / "saved"
    with open_instance(params) as instance:
        run(instance, PROMPT)
        saved = save_prefix(instance, file, PROMPT)
        assert saved.tokens == PROMPT and saved.n_bytes == file.stat().st_size
    with open_instance(params) as instance:
        _, expected = run(instance, [*PROMPT, 9, 8], cache_prompt=False)
        assert restore_prefix(instance, file) == saved
        n_cached, found = run(instance, [*PROMPT, 9, 8])
        assert (n_cached, found) == (len(PROMPT), expected)


def test_files_of_other_models_and_settings_are_refused(tmp_path: Path, path: Path) -> None:
    file, cpu = tmp_path / "saved", PLACEMENTS["cpu"]
    with open_instance(opened(cpu, path)) as instance:
        run(instance, PROMPT)
        save_prefix(instance, file, PROMPT)
        with pytest.raises(RequestError, match="saved with another salt: ; this is secret"):
            restore_prefix(instance, file, PrefixIdentity("secret"))
        with pytest.raises(RequestError, match="none of the 3 tokens is in memory"):
            save_prefix(instance, tmp_path / "other", [7, 7, 7])
    other = tmp_path / "other.gguf"
    write_model(TINY["llama"], other, GGMLType.Q8_0, seed=2)
    steer = write_control(tmp_path / "steer.gguf", {"direction.1": np.ones(64, np.float32)})
    for params, what in (
        (opened(cpu, other), "model"),
        (opened(cpu, path, type_k="q8_0"), "type of keys"),
        (opened(cpu, path, rope_freq_base=5000.0), "metadata options"),
        (opened(PLACEMENTS["sim+cpu"], path), "placement"),
        (opened(cpu, path, control_vector=(steer,)), "control vectors"),
    ):
        with (
            open_instance(params) as instance,
            pytest.raises(RequestError, match=f"saved with another {what}: "),
        ):
            restore_prefix(instance, file)


def test_a_file_that_is_replaced_is_another_model(tmp_path: Path, path: Path) -> None:
    """One process opens the same path again. A running model stays what was loaded."""
    model, other = tmp_path / "model.gguf", tmp_path / "other.gguf"
    file, again = tmp_path / "saved", tmp_path / "again"
    write_model(TINY["llama"], other, GGMLType.Q8_0, seed=2)
    model.write_bytes(path.read_bytes())
    with open_instance(opened(PLACEMENTS["cpu"], model)) as instance:
        run(instance, PROMPT)
        save_prefix(instance, file, PROMPT)
        other.replace(model)
        save_prefix(instance, again, PROMPT)
        assert again.read_bytes() == file.read_bytes()
    with open_instance(opened(PLACEMENTS["cpu"], model)) as instance:
        for each in (file, again):
            with pytest.raises(RequestError, match="saved with another model: "):
                restore_prefix(instance, each)


def test_a_file_that_is_replaced_before_it_was_read(tmp_path: Path, path: Path) -> None:
    model = tmp_path / "model.gguf"
    model.write_bytes(path.read_bytes())
    with open_instance(opened(PLACEMENTS["cpu"], model)) as instance:
        run(instance, PROMPT)
        write_model(TINY["llama"], model, GGMLType.Q8_0, seed=2)
        with pytest.raises(ModelFileError, match=r"gguf: the file was replaced after it was"):
            save_prefix(instance, tmp_path / "saved", PROMPT)


def test_a_prefix_that_is_forgotten_is_evaluated_again(tmp_path: Path, path: Path) -> None:
    with open_instance(opened(PLACEMENTS["cpu"], path)) as instance:
        other = [*PROMPT[:70], 5, 6]
        run(instance, PROMPT)
        whole = instance.engine.slots.last[0].tokens
        run(instance, other)
        assert forget_prefix(instance, PROMPT) == 0  # the longer one needs it
        assert forget_prefix(instance, whole) == len(whole) - 64  # others share two pages
        assert forget_prefix(instance, whole) == 0
        assert run(instance, PROMPT)[0] == 70
        assert run(instance, other)[0] == len(other) - 1


def test_restoring_beside_running_texts(tmp_path: Path, path: Path) -> None:
    file, params = tmp_path / "saved", opened(PLACEMENTS["cpu"], path)
    with open_instance(params) as instance:
        run(instance, PROMPT)
        save_prefix(instance, file, PROMPT)
        expected = run(instance, [5] * 100, cache_prompt=False)[1]
        found: list[object] = []
        threads = [
            Thread(target=lambda: found.append(run(instance, [5] * 100)[1])) for _ in range(3)
        ]
        for thread in threads:
            thread.start()
        for _ in range(5):  # the pool has no room for all: texts are preempted
            restore_prefix(instance, file)
        for thread in threads:
            thread.join()
        assert found == [expected] * 3


def test_a_pool_that_is_too_small(tmp_path: Path, path: Path) -> None:
    file = tmp_path / "saved"
    with open_instance(opened(PLACEMENTS["cpu"], path)) as instance:
        run(instance, PROMPT)
        save_prefix(instance, file, PROMPT)
    small = PLACEMENTS["cpu"].change(path=path, n_ctx=64, n_ubatch=32)
    with (
        open_instance(small) as instance,
        pytest.raises((RequestError, OutOfMemoryError), match="has 151 tokens; this context takes"),
    ):
        restore_prefix(instance, file)
