"""`lamella explain`: a decode step and a prompt's graph as text, JSON, DOT and a page."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest
from commands import lamella, tiny_model
from tiny_models import TINY, write_model

from lamella.graph import Op, Tensor
from lamella.kernels.cpu.packed.buffer import RepackBufferType
from lamella.kernels.sim import SimDevice
from lamella.sched.explain.render import COLUMNS

SPLIT = ("-dev", "sim", "-ngl", "2")


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return tiny_model(tmp_path)


def explained(*args: object) -> dict[str, Any]:
    done = lamella("explain", *args, "--json")
    assert (done.returncode, done.stderr) == (0, "")
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_a_decode_step_as_text(model: Path) -> None:
    done = lamella("explain", model, "-dev", "none")
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert lines[0] == "tiny.gguf, decode step"
    assert lines[1] == "KV of full: 2 layers (0-1), 256 tokens, 72.00 KiB"
    assert re.fullmatch(r"graph: \d+ nodes, 1 split, 0 copies of 0 bytes", lines[2])
    assert lines[4].startswith("split 0: CPU, nodes 0..")
    (norm,) = [line for line in lines if " attn_norm-0 " in line and "MUL " in line]
    assert norm.endswith("1.wgt1 its weights blk.0.attn_norm.weight are on CPU")
    assert max(map(len, lines)) <= COLUMNS


def test_the_devices_of_a_split_model(model: Path) -> None:
    found = explained(model, *SPLIT)
    assert (found["model"], found["graph"], found["n_tokens"]) == ("tiny.gguf", "decode step", 1)
    assert [d["name"] for d in found["devices"]] == ["SIM0", "CPU"]
    assert [s["device"] for s in found["splits"]] == ["CPU", "SIM0"]
    begins = found["splits"][1]["why"]
    assert re.fullmatch(r"\S+ runs on SIM0, the split before on CPU: .+", begins)
    assert sum(c["n_bytes"] for c in found["copies"]) == found["bytes_copied"] > 0
    causes = {n["name"]: n["cause"] for n in found["nodes"]}
    assert causes["attn_norm-1"] == "1.wgt1"
    assert {b["buffer_type"] for b in found["memory"]} == {"SIM0", "CPU"}


def test_warnings_of_the_plan_go_to_stderr(model: Path) -> None:
    done = lamella("explain", model, "-dev", "sim:200KiB", "-fitt", "0", "-c", 64, "-ub", 16)
    assert done.returncode == 0 and done.stdout.startswith("tiny.gguf, decode step\n")
    assert re.search(r"^lamella: \d of 3 layers on SIM0: more does not fit$", done.stderr, re.M)
    done = lamella("explain", model, "-dev", "sim:1KiB", "-ngl", "all", "--json")
    assert done.returncode == 0 and json.loads(done.stdout)["n_nodes"]
    assert done.stderr.startswith("lamella: the model does not fit: SIM0 lacks ")
    assert done.stderr.count("\n") == 1


def test_displaced_nodes(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = SimDevice.supports_op

    def supports_op(self: SimDevice, op: Tensor) -> bool:
        return op.op is not Op.RMS_NORM and plain(self, op)

    monkeypatch.setattr(SimDevice, "supports_op", supports_op)
    for rule, begin in (("strict", "placement is strict, but "), ("warn", ""), ("auto", None)):
        done = lamella("explain", model, *SPLIT, "--placement", rule)
        assert done.returncode == 0 and done.stdout
        if begin is None:
            assert not done.stderr
        else:
            assert done.stderr.startswith(f"lamella: {begin}")
            assert "RMS_NORM nodes run on CPU, not on SIM0" in done.stderr


def test_the_graph_of_a_prompt(model: Path) -> None:
    found = explained(model, "-dev", "none", "--ubatch", 16)
    assert (found["graph"], found["n_tokens"]) == ("ubatch of 16 tokens", 16)
    (embd,) = [n for n in found["nodes"] if n["name"] == "inp_embd"]
    assert embd["ne"][1] == 16
    found = explained(model, "-dev", "none", "--ubatch", 9)
    assert found["graph"] == "ubatch of 9 tokens, in a graph for 16"
    assert explained(model, "-dev", "none", "--ubatch", 1)["graph"] == "ubatch of 1 token"


@pytest.mark.parametrize("n", [0, -1, 65])
def test_an_invalid_ubatch(model: Path, n: int) -> None:
    done = lamella("explain", model, "-dev", "none", "-ub", 64, "--ubatch", n)
    assert (done.returncode, done.stdout) == (2, "")
    assert f"error: --ubatch is {n}: must be 1 to 64, the most tokens computed" in done.stderr


def test_experts_on_the_cpu(tmp_path: Path) -> None:
    path = tmp_path / "experts.gguf"
    write_model(TINY["mixtral"], path)
    found = explained(path, "-dev", "sim", "--cpu-moe", "--no-repack")
    experts = [n for n in found["nodes"] if n["op"] == "MUL_MAT_ID"]
    assert experts
    assert {n["device"] for n in experts} == {"CPU"}
    assert all("_exps.weight are on CPU" in n["why"] for n in experts)
    assert found["n_splits"] >= 2 * TINY["mixtral"].n_layer


def test_nothing_is_loaded(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("weight memory was allocated")

    monkeypatch.setattr(RepackBufferType, "_alloc", refuse)
    assert explained(model, "-dev", "none")["n_splits"] == 1


def test_simulated_hardware(model: Path) -> None:
    found = explained(model, "-dev", "sim:80GiB:2")
    assert [d["name"] for d in found["devices"]] == ["SIM0", "SIM1", "CPU"]


def test_dot(model: Path) -> None:
    done = lamella("explain", model, *SPLIT, "--dot")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("digraph lamella {")
    assert done.stdout.endswith("}\n")
    assert 'label="copy"' in done.stdout


def test_the_page(model: Path, tmp_path: Path) -> None:
    out = tmp_path / "page.html"
    done = lamella("explain", model, *SPLIT, "--html", out)
    assert (done.returncode, done.stdout, done.stderr) == (0, f"wrote {out}\n", "")
    text = out.read_text("utf-8")
    assert "<title>tiny.gguf: decode step</title>" in text
    done = lamella("explain", model, *SPLIT, "--html", out, "--json")
    assert done.stderr == f"wrote {out}\n"
    found = json.loads(done.stdout)
    inside = re.search(r'id="data">(.*?)</script>', out.read_text("utf-8"), re.DOTALL)
    assert inside is not None
    assert json.loads(inside[1])["explanation"]["nodes"] == found["nodes"]


def test_the_page_of_a_file_whose_name_is_not_utf8(model: Path, tmp_path: Path) -> None:
    odd, out = tmp_path / os.fsdecode(b"caf\xe9.gguf"), tmp_path / "page.html"
    odd.symlink_to(model)
    assert lamella("explain", odd, "--html", out).returncode == 0
    assert "<title>caf?.gguf: decode step</title>" in out.read_text("utf-8")


def test_a_page_that_cannot_be_written(model: Path, tmp_path: Path) -> None:
    for out, why in (
        (tmp_path / "no" / "page.html", "No such file or directory"),
        (tmp_path, "Is a directory"),
    ):
        done = lamella("explain", model, "-dev", "none", "--html", out)
        assert (done.returncode, done.stdout) == (1, "")
        assert done.stderr == f"lamella: error: {out} cannot be written: {why}\n"


def test_a_missing_model(tmp_path: Path) -> None:
    done = lamella("explain", tmp_path / "none.gguf")
    assert done.returncode == 1
    assert "none.gguf" in done.stderr


def test_json_and_dot_exclude_each_other(model: Path) -> None:
    done = lamella("explain", model, "--json", "--dot")
    assert done.returncode == 2
    assert "not allowed with" in done.stderr


def test_help() -> None:
    done = lamella("explain", "--help")
    assert done.returncode == 0
    assert "usage: lamella explain [MODEL] [options]" in done.stdout
    for flag in ("--ubatch N", "--html FILE", "--json", "--dot", "-ngl", "--cpu-moe"):
        assert flag in done.stdout


def test_lamella_debug_logs_the_same_text(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAMELLA_NO_JIT", "1")
    flags = ("-m", model, *SPLIT, "-c", 64, "-ub", 16)
    text = lamella("explain", *flags).stdout.split("\n", 2)[2].rstrip("\n")  # without its head
    monkeypatch.setenv("LAMELLA_DEBUG", "3")
    done = lamella("run", *flags, "-p", "a", "-n", 2, "--temp", 0)
    assert done.returncode == 0
    assert text in done.stderr  # the loaded model logs the same text


def test_the_graph_of_a_text_to_embed(model: Path) -> None:
    text = lamella("explain", model, "--embeddings", "--ubatch", "33").stdout
    assert text.startswith(f"{model.name}, text of 33 tokens, in a graph for 36\n")
    assert lamella("explain", model, "--embeddings").stdout.startswith(
        f"{model.name}, text of 1 token\n"
    )
