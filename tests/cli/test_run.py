"""`lamella run`: text on stdout, the rest on stderr, JSON, errors in one line."""

from __future__ import annotations

import json
import re
import signal
import subprocess
from pathlib import Path

import pytest
from commands import LAMELLA, lamella, tiny_model
from golden_data import golden_cases, model_path
from tiny_models import TINY, write_model

from lamella.kernels import devices
from lamella.kernels.cuda.registry import CudaRegistry

NO_GUESSES = ("--spec-type", "none")  # each token has a step


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model(tmp_path_factory.mktemp("run"))


def test_golden_tokens() -> None:
    path = model_path("stories260K-F32")
    for case in golden_cases("stories260K-F32"):
        n = str(len(case["greedy_tokens"]))
        done = lamella(
            "run", "-m", path, "-p", case["prompt"], "-n", n, "--temp", "0", *NO_GUESSES, "--json"
        )
        report = json.loads(done.stdout)
        assert report["prompt_tokens"] == case["prompt_tokens"]
        assert report["tokens"] == case["greedy_tokens"]
        assert report["text"] == case["greedy_text"]
        assert report["stop_type"] == "limit"
        assert report["timings"]["prompt_n"] == len(case["prompt_tokens"])
        assert report["timings"]["predicted_n"] == len(case["greedy_tokens"])
        assert report["n_graphs_built"] <= 3
        assert report["n_reused"] >= len(case["greedy_tokens"]) - 1


@pytest.mark.parametrize("layers", [["-ngl", "2"], ["-ngl", "all"], ["-ngl", "0"]])
def test_a_split_over_a_simulated_gpu_gives_the_same_text(model: Path, layers: list[str]) -> None:
    args = ["-m", model, "-p", "a b c", "-n", "12", "--temp", "0", "--json"]
    alone = json.loads(lamella("run", *args).stdout)
    split = json.loads(lamella("run", *args, "-dev", "sim", *layers).stdout)
    assert split["tokens"] == alone["tokens"]


@pytest.mark.parametrize(("flags", "is_logged"), [([], True), (["-dev", "none"], False)])
def test_a_terminal_shows_why_no_gpu_is_used(
    model: Path, flags: list[str], is_logged: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = CudaRegistry((), "no NVIDIA driver is installed")
    monkeypatch.setattr(devices, "find_cuda", lambda: found)
    args = ["run", "-m", model, "-p", "a", "-n", "2", *flags]
    line = "lamella: CUDA is not used: no NVIDIA driver is installed\n"
    assert line not in lamella(*args).stderr
    done = lamella(*args, terminal=True)
    assert (line in done.stderr) is is_logged
    assert line not in done.stdout


def test_text_is_on_stdout_and_timings_on_stderr(model: Path) -> None:
    args = ["run", "-m", model, "-p", "a b", "-n", "5", "--seed", "3"]
    plain, report = lamella(*args), json.loads(lamella(*args, "--json").stdout)
    assert plain.returncode == 0
    assert plain.stdout == report["text"] + "\n"
    assert "prompt: 3 tokens" in plain.stderr
    assert "tokens/s" in plain.stderr
    assert report["seed"] == 3


def test_timings_name_guesses_if_there_were_any(model: Path) -> None:
    args = ["run", "-m", model, "-p", "a b", "-n", "20", "--ignore-eos"]
    assert "right" not in lamella(*args, "--spec-type", "none").stderr
    # synthetic ones are made in each step whose time is known
    made = lamella(*args, "--spec-synth-rates", "1,1,1")
    assert re.search(r"guesses: \d+ of \d+ right, ended by limit", made.stderr)


NO_TEXT = (
    "lamella: the model ended at once and generated no text: `lamella run` continues a text, "
    "`lamella chat` answers questions\n"
)


@pytest.mark.parametrize("terminal", [False, True])
def test_an_empty_text_has_a_note(terminal: bool) -> None:
    """The default model does so if the prompt is a question."""
    done = lamella("run", "-p", "Who are you?", "--temp", "0", terminal=terminal)
    assert (done.returncode, done.stdout) == (0, "\n")
    assert done.stderr.endswith(f"\n{NO_TEXT}") and done.stderr.count(NO_TEXT) == 1
    report = lamella("run", "-p", "Who are you?", "--temp", "0", "--json", terminal=terminal)
    assert json.loads(report.stdout)["tokens"] == []
    assert report.stderr.endswith(NO_TEXT)


def test_a_requested_end_has_no_note(model: Path) -> None:
    for args in (["-n", "0"], ["-n", "1"], ["-n", "9", "-r", "a", "-r", " ", "-r", "b"]):
        done = lamella("run", "-m", model, "-p", "a", "--ignore-eos", "-s", "1", *args)
        assert done.returncode == 0
        assert "ended at once" not in done.stderr


def test_prompts_from_files_and_pipes(model: Path, tmp_path: Path) -> None:
    file = tmp_path / "prompt.txt"
    file.write_text("a\nb")
    common = ["run", "-m", model, "-n", "4", "--temp", "0", "--json"]
    expected = json.loads(lamella(*common, "-f", file).stdout)
    for args, stdin in ((["-p", r"a\nb"], ""), (["-p", "-"], "a\nb"), ([], "a\nb")):
        assert (
            json.loads(lamella(*common, *args, stdin=stdin).stdout)["tokens"]
            == (expected["tokens"])
        )
    literal = json.loads(lamella(*common, "-p", r"a\nb", "--no-escape").stdout)
    assert len(literal["prompt_tokens"]) > len(expected["prompt_tokens"])


def test_stop_texts(model: Path) -> None:
    args = ["run", "-m", model, "-p", "a", "-n", "30", "--seed", "5", "--temp", "1", "--json"]
    text = json.loads(lamella(*args).stdout)["text"]
    middle = text[len(text) // 2]
    report = json.loads(lamella(*args, "-r", middle).stdout)
    assert report["text"] == text[: text.index(middle)]
    assert (report["stop_type"], report["stopping_word"]) == ("word", middle)


@pytest.mark.parametrize("device", [[], ["-dev", "sim", "-ngl", "2"]])
def test_trace_tensors(model: Path, device: list[str]) -> None:
    args = ["run", "-m", model, "-p", "a b", "-n", "2", "--temp", "0", "--json", *device]
    plain = lamella(*args)
    done = lamella(*args, "--trace-tensors", "^l_out-0$|FLASH_ATTN_EXT")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["tokens"] == json.loads(plain.stdout)["tokens"]
    lines = [line for line in done.stderr.splitlines() if " = " in line]
    names = [line.split(" = ")[0] for line in lines]
    assert names == ["fattn-0", "l_out-0", "fattn-1"] * 2  # the prompt, then a token
    number = r"-?[\d.e+-]+"
    numbers = f"min {number}, max {number}, mean {number}, 0 NaN; ({number}, ){{8}}..."
    assert re.fullmatch(rf"l_out-0 = ADD \[64, 4\] F32: {numbers}", lines[1])
    assert re.fullmatch(rf"l_out-0 = ADD \[64\] F32: {numbers}", lines[4])


def test_trace_tensors_that_match_no_node(model: Path) -> None:
    args = ["run", "-m", model, "-p", "a", "-n", "1", "--trace-tensors"]
    done = lamella(*args, "l_oud")
    assert done.returncode == 0
    assert "lamella: no node matches 'l_oud'; some nodes: inp_tokens, inp_embd, " in done.stderr
    done = lamella(*args, "l_(")
    assert done.returncode == 1
    assert done.stderr.startswith("lamella: error: 'l_(' is not a regular expression: missing )")
    assert done.stdout == ""


@pytest.mark.parametrize(
    ("args", "complaint"),
    [
        (["-m", "nowhere.gguf"], "nowhere.gguf"),
        (["-m", __file__], "not a GGUF"),
        (["-ctk", "q4_7"], "-ctk/--cache-type-k is 'q4_7': must be one of f16, bf16, f32, q8_0"),
        (["-t", "0"], "-t/--threads is 0: must be 1 to 512"),
        (["-dev", "gpu0"], "unknown device 'gpu0'; devices: CPU, none, sim"),
        (["-dev", "CUDA99"], "unknown device 'CUDA99'; devices: CPU, none, "),
        (
            ["-dev", "sim:1GiB:2", "-sm", "none", "-mg", "2"],
            "-mg/--main-gpu is 2: there are 0 (SIM0), 1",
        ),
        (
            ["-sm", "row"],
            "-sm/--split-mode is 'row': must be one of layer, none; a layer is computed",
        ),
        (["-mg", "-1"], "-mg/--main-gpu is -1: must be 0 to"),
        (["--samplers", "top_k;magic"], "--samplers is 'magic': must be one of "),
        (["-f", "nowhere.txt"], "nowhere.txt cannot be read"),
        (["-f", "model"], "error: model cannot be read"),  # a file named like a flag's field
        (["-n", "-2"], "-n/--predict/--n-predict is -2: must be -1 to 2147483647"),
        (["--repeat-penalty", "0"], "--repeat-penalty is 0.0: must be "),
        (["-l", "99999+1"], "-l/--logit-bias: token 99999: must be 0 to "),
        (["-ts", "1,2,3", "-dev", "sim"], "-ts/--tensor-split has 3 shares for 1 devices"),
        (
            ["-c", "4", "-p", "a b c d e"],
            "the context holds 4: shorten it, or make the context larger (-c) if the model was "
            "trained with more\n",
        ),
        (["-ub", "0"], "-ub/--ubatch-size is 0: must be 1 to"),
    ],
)
def test_errors_are_one_line(model: Path, args: list[str], complaint: str) -> None:
    given = ["-p", "a"] if "-f" not in args else []
    done = lamella("run", "-m", model, *given, "-n", "2", *args)
    assert done.returncode == (2 if complaint.startswith("-") else 1)
    assert done.stdout == ""
    assert complaint in done.stderr
    assert done.stderr.startswith("lamella: error: ")
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("args", "complaint"),
    [
        (["run", "-ngl", "many"], "'many' is not a number, 'all' or 'auto'"),
        (["run", "-n", "x"], "'x' is not a whole number"),
        (["bench", "-m", "x", "a", "b"], "unexpected argument 'b'"),
        (["rnu"], "invalid choice: 'rnu'"),
    ],
)
def test_wrong_flags(args: list[str], complaint: str) -> None:
    if args[:1] == ["run"]:
        args = [*args, "-m", "x.gguf"]
    done = lamella(*args)
    assert done.returncode == 2
    assert complaint in done.stderr
    assert "--help" in done.stderr


def test_the_program_runs_in_a_process_of_its_own(model: Path) -> None:
    done = subprocess.run(
        [*LAMELLA, "run", "-m", model, "-p", "a", "-n", "3", "--ignore-eos", "--json"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert len(json.loads(done.stdout)["tokens"]) == 3


def test_help_of_commands() -> None:
    assert "commands" in lamella("--help").stdout
    for command in ("run", "chat", "serve"):
        done = lamella(command, "--help")
        assert done.returncode == 0
        for flag in ("-m, --model MODEL", "-ngl, --gpu-layers", "--temp, --temperature N", "-ctk,"):
            assert flag in done.stdout
        assert max(map(len, done.stdout.splitlines())) <= 100


def test_ctrl_c_ends_the_program_quietly(model: Path) -> None:
    command = [*LAMELLA, "run", "-m", str(model), "-p", "a", "-n", "-1", "--ignore-eos"]
    with subprocess.Popen(
        [*command, "-c", "200000"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.read(1)
        process.send_signal(signal.SIGINT)
        try:
            _, errors = process.communicate(timeout=250)
        finally:
            process.kill()
    assert process.returncode == 130
    assert "Traceback" not in errors


def test_a_closed_pipe_ends_the_program(model: Path) -> None:
    command = [*LAMELLA, "run", "-m", str(model), "-p", "a", "-n", "-1", "--ignore-eos"]
    with subprocess.Popen(
        [*command, "-c", "200000"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.read(1)
        process.stdout.close()
        try:
            assert process.wait(timeout=250) == 1
        finally:
            process.kill()
        assert process.stderr is not None
        assert "Traceback" not in process.stderr.read()


def test_flags_override_the_file_s_recommended_sampling(tmp_path: Path) -> None:
    path = tmp_path / "recommends.gguf"
    write_model(TINY["llama"], path, metadata={"general.sampling.temp": 0.0})
    run = ["run", "-m", path, "-p", "ab", "-n", "12"]
    plain = lamella(*run, terminal=True)
    greedy = lamella(*run, "--temp", "0", terminal=True)
    assert plain.stdout == greedy.stdout
    assert "as the model's file recommends: temperature 0.0" in plain.stderr
    assert "recommends" not in greedy.stderr  # only values in effect
    hot = [lamella(*run, "--temp", "5", "-s", seed).stdout for seed in (1, 2)]
    assert hot[0] != hot[1]
