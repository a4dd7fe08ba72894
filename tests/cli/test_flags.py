"""Flags: names, short forms, values, and error messages."""

from __future__ import annotations

import argparse
import math
import re
import shlex

import pytest
from commands import lamella

from lamella.base.errors import RequestError
from lamella.cli.flags import add_model_flags, open_params, request_defaults
from lamella.cli.main import parser
from lamella.cli.model_flags import hub_name, text_argument
from lamella.cli.parser import Parser
from lamella.graph import GGMLType
from lamella.model.params import parse_overrides, parse_shares
from lamella.model.sampling import SamplingParams
from lamella.model.sampling.params import parse_bias


@pytest.fixture(autouse=True)
def any_file(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the file of a model be missing: these tests open none."""
    monkeypatch.setattr("lamella.cli.download.find_file", lambda name, **_: name)


def parsed(*args: str) -> argparse.Namespace:
    found: argparse.Namespace = parser(args).parse_args(args)
    return found


@pytest.mark.parametrize("command", ["run", "chat", "serve"])
def test_llama_server_s_names_and_short_forms(command: str) -> None:
    short = (
        "-m f -c 9 -b 8 -ub 7 -np 3 -t 2 -tb 4 --poll 0 -ngl 5 -dev sim -ctk q8_0 -ctv f32 "
        "-ts 3,1 -sm none -mg 1 -nkvo -nr -ot a=CPU -ncmoe 2 -fitt 9"
    )
    long = (
        "--model f --ctx-size 9 --batch-size 8 --ubatch-size 7 --parallel 3 --threads 2 "
        "--threads-batch 4 --poll 0 "
        "--gpu-layers 5 --device sim --cache-type-k q8_0 --cache-type-v f32 --tensor-split 3,1 "
        "--split-mode none --main-gpu 1 --no-kv-offload --no-repack --override-tensor a=CPU "
        "--n-cpu-moe 2 --fit-target 9"
    )
    params = open_params(parsed(command, *short.split()))
    assert params == open_params(parsed(command, *long.split()))
    context, placement = params.context, params.placement
    assert (context.n_ctx, context.n_batch, context.n_ubatch, context.n_parallel) == (9, 8, 7, 3)
    assert (context.type_k, context.type_v) == (GGMLType.Q8_0, GGMLType.F32)
    assert (placement.n_threads, placement.n_threads_batch, placement.poll) == (2, 4, 0)
    assert (placement.n_gpu_layers, placement.devices) == (5, ("sim",))
    assert (placement.split_mode, placement.main_gpu) == ("none", 1)
    assert placement.tensor_split == (3.0, 1.0)
    assert not placement.kv_offload and not placement.repack
    assert placement.overrides == (("a", "CPU"),)
    assert (placement.n_cpu_moe, placement.fit_target) == (2, (9,))


def test_request_flags() -> None:
    flags = "--temp 0.5 --top-k 3 --top-p 0.9 --min-p 0.1 --typical 0.8 -s 7 --samplers top_k;temp"
    given = request_defaults(parsed("run", "-m", "f", *flags.split(), "-l", "5-inf", "-l", "6+1.5"))
    assert len(given) == 8  # no defaults: the model's file may recommend its own
    params = SamplingParams(**given)
    assert (params.temperature, params.top_k, params.top_p, params.min_p) == (0.5, 3, 0.9, 0.1)
    assert (params.typical_p, params.seed, params.samplers) == (0.8, 7, ("top_k", "temperature"))
    assert params.logit_bias == ((5, -math.inf), (6, 1.5))


@pytest.mark.parametrize(
    ("flags", "n"),
    [("-ngl all", -1), ("-ngl -1", -1), ("-ngl 0", 0), ("-ngl auto", None), ("", None)],
)
def test_number_of_layers(flags: str, n: int | None) -> None:
    assert open_params(parsed("run", "-m", "f", *flags.split())).placement.n_gpu_layers == n


def test_a_flag_with_two_values(monkeypatch: pytest.MonkeyPatch) -> None:
    name = "--control-vector-layer-range"
    found = open_params(parsed("run", "-m", "f", name, "2", "5")).adapters
    assert found.control_vector_layer_range == (2, 5)
    monkeypatch.setenv("LAMELLA_ARG_CONTROL_VECTOR_LAYER_RANGE", "3 4")
    found = open_params(parsed("run", "-m", "f")).adapters
    assert found.control_vector_layer_range == (3, 4)
    with pytest.raises(RequestError, match="must be the first and the last layer"):
        found.change(control_vector_layer_range=(1,))


def test_placement_defaults() -> None:
    params = open_params(parsed("run", "-m", "f")).placement
    assert (params.overrides, params.n_cpu_moe, params.placement) == ((), None, "warn")
    assert (params.fit, params.fit_target) == (True, None)


def test_placement_flags_of_weights() -> None:
    flags = ["-ot", "a=CUDA0,b=CPU", "-ot", r"c=CPU", "--placement", "strict", "--fit"]
    params = open_params(parsed("run", "-m", "f", *flags)).placement
    assert params.overrides == (("a", "CUDA0"), ("b", "CPU"), ("c", "CPU"))
    assert params.placement == "strict" and params.fit


@pytest.mark.parametrize(
    ("flags", "n"),
    [("-cmoe", -1), ("--cpu-moe", -1), ("-cmoe -ncmoe 2", 2), ("-ncmoe 2 -cmoe", -1)],
)
def test_cpu_moe_means_all_layers(flags: str, n: int) -> None:
    assert open_params(parsed("run", "-m", "f", *flags.split())).placement.n_cpu_moe == n


def test_the_last_flag_of_an_option_wins() -> None:
    flags = ["--sampler-seq", "kp", "--samplers", "temp"]
    assert request_defaults(parsed("run", "-m", "f", *flags))["samplers"] == ("temp",)


@pytest.mark.parametrize("args", [["-m", "x y"], ["--port", "5"]])
def test_flags_without_a_command(args: list[str]) -> None:
    done = lamella(*args)
    assert done.returncode == 2
    text = shlex.join(args)
    assert done.stderr.startswith(
        f"lamella: begin with a command, such as `lamella serve {text}`\n"
    )


def test_help_of_help() -> None:
    assert lamella("help", "help").stdout == lamella("help", "version").stdout
    assert lamella("help", "help").stdout == lamella("--help").stdout


@pytest.mark.parametrize(
    ("text", "pairs"),
    [
        (r"blk\.[0-9]+\.ffn=CPU", [(r"blk\.[0-9]+\.ffn", "CPU")]),
        ("a{1,2}=CPU,b=SIM0", [("a{1,2}", "CPU"), ("b", "SIM0")]),
        ("(x|y,z)=CPU, [,(]b=SIM0 ", [("(x|y,z)", "CPU"), ("[,(]b", "SIM0")]),
        (r"\(a=CPU,\[b=CPU", [(r"\(a", "CPU"), (r"\[b", "CPU")]),
        (r"[],\]]a=CPU,b=CPU", [(r"[],\]]a", "CPU"), ("b", "CPU")]),
        ("(?=a)b=CPU", [("(?=a)b", "CPU")]),
    ],
)
def test_overrides(text: str, pairs: list[tuple[str, str]]) -> None:
    assert list(parse_overrides(text)) == pairs


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "'': must be like exps=CPU"),
        ("exps", "'exps': must be like exps=CPU"),
        ("=CPU", "'=CPU': must be like exps=CPU"),
        ("a=CPU,", "'': must be like exps=CPU"),
        ("a,b=CPU", "'a': must be like exps=CPU"),
        ("a=", "'a=': must be like exps=CPU"),
        ("(a=CPU", "'(a' is not a regular expression: missing ), unterminated subpattern"),
        ("[a=CPU,b=CPU", "'[a' is not a regular expression: unterminated character set"),
    ],
)
def test_wrong_overrides(text: str, message: str) -> None:
    done = lamella("run", "-m", "f", "-ot", text)
    assert done.returncode == 2
    assert f"argument -ot/--override-tensor: {message}" in done.stderr


def test_an_unknown_placement() -> None:
    done = lamella("run", "-m", "f", "--placement", "hope")
    assert done.returncode == 2
    assert "argument --placement: invalid choice: 'hope'" in done.stderr


def model_argument_parser() -> Parser:
    made = Parser(prog="plan")
    add_model_flags(made)
    made.set_defaults(parser=made)
    return made


@pytest.mark.parametrize(
    "args",
    ["f.gguf -ngl 5", "-ngl 5 f.gguf", "-ngl 5 f.gguf -nkvo", "-nkvo -m f.gguf", "-m f.gguf"],
)
def test_the_model_as_an_argument(args: str) -> None:
    assert open_params(model_argument_parser().parse_args(args.split())).model.path == "f.gguf"


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ("-hf u/r -m f.gguf", "argument -m/--model: not allowed with argument -hf/-hfr/--hf-repo"),
        ("f.gguf g.gguf", "unexpected argument 'g.gguf'"),
    ],
)
def test_two_models_are_an_error(
    args: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        model_argument_parser().parse_args(args.split())
    assert ended.value.code == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    "args", ["f.gguf -m g.gguf", "-m g.gguf f.gguf", "f.gguf -hf u/r", "f -mu https://a/g.gguf"]
)
def test_an_argument_and_a_flag_are_two_models(
    args: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        open_params(model_argument_parser().parse_args(args.split()))
    assert ended.value.code == 2
    assert re.search(r"two models are given, f(\.gguf)? and .*: give one", capsys.readouterr().err)


@pytest.mark.parametrize("args", ["f.gguf", "-m f.gguf"])
def test_a_model_that_is_typed_wins_over_variables(
    args: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LAMELLA_ARG_HF_REPO", "u/r")
    monkeypatch.setenv("LLAMA_ARG_MODEL", "g.gguf")
    assert open_params(parsed("run", *args.split())).model.path == "f.gguf"


COMMANDS = ["run", "chat", "serve", "plan", "explain", "profile", "bench"]


@pytest.mark.parametrize("command", COMMANDS)
def test_a_model_on_hugging_face(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[object] = []

    def find(name: str, **options: object) -> str:
        asked.append((name, options["file"], options["offline"], options["token"]))
        return name

    monkeypatch.setattr("lamella.cli.download.find_file", find)
    for flags in ("-hf u/r:Q8_0 -hff b.gguf -hft t", "-hfr u/r:Q8_0 --hf-file b.gguf --hf-token t"):
        open_params(parsed(command, *flags.split(), "--offline"))
    assert asked == [("hf://u/r:Q8_0", "b.gguf", True, "t")] * 2


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("flags", [[], ["-m"], ["-mu"], ["--model-url"]])
def test_a_url_is_not_changed(command: str, flags: list[str]) -> None:
    url = "https://example.com/a//b.gguf?download=true"
    assert open_params(parsed(command, *flags, url)).model.path == url


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ("-hf r", "argument -hf/-hfr/--hf-repo: 'r': must be USER/REPO or USER/REPO:QUANT"),
        ("-hf u/r:", "argument -hf/-hfr/--hf-repo: 'u/r:': must be USER/REPO"),
        ("-m f -hf u/r", "argument -hf/-hfr/--hf-repo: not allowed with argument -m/--model"),
        ("-mu f.gguf", "argument -mu/--model-url: 'f.gguf': must be the URL of a GGUF file"),
        ("-dr ai/x", "argument -dr/--docker-repo: there is no download from Docker: use -hf "),
    ],
)
def test_wrong_models_on_hugging_face(flags: str, message: str) -> None:
    done = lamella("run", *flags.split())
    assert done.returncode == 2
    assert message in done.stderr


@pytest.mark.parametrize(
    ("text", "name"),
    [
        *((text, "hf://u/r") for text in ("u/r", "hf://u/r", "hf.co/u/r", "http://hf.co/u/r")),
        ("https://huggingface.co/u/r:Q8_0", "hf://u/r:Q8_0"),
        *[("https://huggingface.co/u/r/resolve/main/f.gguf",) * 2],
    ],
)
def test_forms_of_hf(text: str, name: str) -> None:
    assert hub_name(text) == name


@pytest.mark.parametrize("text", ["https://example.com/u/r", "https://[x/u/r", "f.gguf", "hf://u"])
def test_hf_refuses_other_servers(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError):
        hub_name(text)


def test_hff_needs_hf() -> None:
    with pytest.raises(RequestError, match="-hff FILE names a file of a repository"):
        open_params(parsed("run", "-hff", "g.gguf"))


def test_an_invalid_value_is_reported_before_a_download(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lamella.cli.download.find_file", lambda *args, **options: 1 / 0)
    with pytest.raises(RequestError, match="n_parallel is 0"):
        open_params(parsed("run", "-hf", "u/r", "-np", "0"))


def test_minus_one_is_llama_cpp_s_word_for_a_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LAMELLA_ARG_THREADS", raising=False)
    params = open_params(parsed("serve", "-m", "f", "-np", "-1", "-t", "-1", "-tb", "-1"))
    assert params == open_params(parsed("serve", "-m", "f"))


def test_numbers_may_follow_a_letter() -> None:
    args = parsed("run", "-m", "f", "-n5", "-t2")
    assert (args.n_predict, args.n_threads) == (5, 2)


@pytest.mark.parametrize("flag", ["-cx", "-fx", "-mx", "-hfx", "-lx", "-cramx"])
def test_flags_of_two_letters_are_not_split(flag: str) -> None:
    done = lamella("run", "-m", "f", flag, "2")
    assert done.returncode == 2
    assert done.stderr.startswith(f"lamella run: unknown flag {flag}")


@pytest.mark.parametrize(
    ("flag", "suggestion"),
    [
        ("--tempp", "--temp/--temperature"),
        ("--gpu-layer", "-ngl/--gpu-layers/--n-gpu-layers"),
        ("--ctx_size", "-c/--ctx-size"),
    ],
)
def test_suggestions(flag: str, suggestion: str) -> None:
    done = lamella("run", "-m", "f", flag, "2")
    assert f"unknown flag {flag}; did you mean {suggestion}?" in done.stderr
    assert "See `lamella run --help`" in done.stderr


@pytest.mark.parametrize("flag", ["--zzz", "--quick", "-q"])
def test_no_suggestion_without_a_similar_flag(flag: str) -> None:
    assert lamella("run", "-m", "f", flag).stderr.startswith(f"lamella run: unknown flag {flag}\n")


@pytest.mark.parametrize(
    ("command", "suggestion"),
    [("serv", "serve"), ("rnu", "run"), ("Chat", "chat"), ("doct", "doctor"), ("lst", "list")],
)
def test_suggested_commands(command: str, suggestion: str) -> None:
    done = lamella(command, "-m", "f")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        f"lamella: argument COMMAND: invalid choice: {command!r}; did you mean {suggestion}?\n"
        "See `lamella --help`.\n"
    )


def test_help_is_as_wide_as_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    for columns, width in ((70, 70), (100, 100), (200, 100)):
        monkeypatch.setenv("COLUMNS", str(columns))
        lines = parsed("serve").parser.format_help().splitlines()
        assert width - 20 < max(map(len, lines)) <= width


@pytest.mark.parametrize("command", ["frobnicate", "x", ""])
def test_an_unknown_command_without_a_similar_one_lists_all(command: str) -> None:
    done = lamella(command)
    assert done.returncode == 2
    assert f"argument COMMAND: invalid choice: {command!r} (choose from " in done.stderr
    assert "doctor" in done.stderr and "did you mean" not in done.stderr


def test_suggested_values() -> None:
    done = lamella("run", "-m", "f", "--placement", "strickt")
    assert done.returncode == 2
    assert "--placement: invalid choice: 'strickt'; did you mean strict?" in done.stderr


def test_values() -> None:
    assert parse_shares("3/1,2") == (3.0, 1.0, 2.0)
    assert parse_bias("15043+1") == ((15043, 1.0),)
    for text in ("15043", "x+1", "5+", "5*2"):
        with pytest.raises(ValueError, match=r"must be like 15043\+1"):
            parse_bias(text)
    with pytest.raises(ValueError, match="must be numbers like 3,1"):
        parse_shares("a,b")


@pytest.mark.parametrize("args", ["m -- {}", "-n 5 m -- {}", "m -n 5 -- {}", "-m m -n 5 -- {}"])
@pytest.mark.parametrize("text", ["-fa", "-prompt", "--version", "-n5"])
def test_two_dashes_protect_a_prompt(args: str, text: str) -> None:
    found = parsed("run", *args.format(text).split())
    assert text_argument(found) == text


def test_arguments_may_be_between_flags() -> None:
    assert parsed("rm", "a", "-y", "b", "--cache-dir", "c", "d").models == ["a", "b", "d"]


@pytest.mark.parametrize("text", ["-hello", "---", "-a b", "-", "--no=1", "-5", "-5x"])
def test_a_text_may_begin_with_a_dash(text: str) -> None:
    found = parsed("run", "m", "-p", text, "-sys", text, "-r", text, "-r", text, "-fa")
    assert (found.prompt, found.system_prompt, found.stop) == (text, text, [text, text])


@pytest.mark.parametrize("text", ["-n", "-n5", "--json", "--temp=1"])
def test_a_flag_is_not_the_text_of_another(text: str) -> None:
    done = lamella("run", "m", "-p", text, "5")
    assert done.returncode == 2
    assert "argument -p/--prompt: expected one argument" in done.stderr
