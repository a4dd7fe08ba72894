"""Makes the model that comes with Lamella, from the training text to the file and its card.

    pip install '.[recipe]'
    python models/recipe/make.py

The steps are text, vocabulary, rows of tokens, training, files, evaluation and card. A step is
skipped if its output is in the working folder, and training resumes from its last checkpoint. So
the same command continues an interrupted run. The last step copies the results to `models/`. The
seed determines everything, except that processors and versions of PyTorch round differently.
Tested by tests/recipe/test_make.py.
"""

from __future__ import annotations

import argparse
import itertools
import json
import shutil
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import train
from card import loss_picture, model_card, sha256
from corpus import read_corpus, write_corpus, write_whole
from evaluate import evaluate, greedy_answers, summary
from export import write_gguf
from net import weights_of
from net_shape import Shape
from rows import make_rows, row_lengths, write_rows
from vocabulary import Encoder, Pieces, learn_pieces

HERE: Final = Path(__file__).resolve().parent
ROOT: Final = HERE.parents[1]
FILE: Final = "lamella-stories-{}.gguf"
ANSWERS: Final = "greedy.json"  # questions with the model's answers
PICTURE: Final = "loss.svg"


@dataclass(frozen=True, slots=True)
class Settings:
    """Sizes of the text, the vocabulary and the network, and the plan of training."""

    n_bytes: int = 50_000_000  # of text, enough for training without repetition
    n_bytes_held_out: int = 400_000
    n_documents_vocabulary: int = 20_000
    shape: Shape = field(default_factory=lambda: Shape(n_vocab=2000))
    plan: train.Plan = field(default_factory=train.Plan)
    type: str = "Q8_0"
    n_evaluated: int = 100


def make(settings: Settings, work: Path, out: Path, log: train.Log = print) -> None:
    """Perform the steps whose output is not in `work`, and copy the results to `out`.

    Raises:
        SystemExit: `work` has results of other settings.
    """
    work.mkdir(parents=True, exist_ok=True)
    _check_settings(settings, work / "settings.json")
    text, held_out, vocabulary = work / "text.jsonl", work / "held-out.jsonl", work / "pieces.json"
    text_rows, held_out_rows = work / "text.npz", work / "held-out.npz"
    f32, shipped = work / FILE.format("F32"), work / FILE.format(settings.type)
    sum_file, answers, card = work / f"{shipped.name}.sha256", work / ANSWERS, work / "README.md"
    seed, results = settings.plan.seed, work / "results.json"

    def learn() -> None:
        some = itertools.islice(read_corpus(text), settings.n_documents_vocabulary)
        learn_pieces(some, settings.shape.n_vocab).save(vocabulary)

    def encode(source: Path, target: Path) -> None:
        encoder = Encoder(Pieces.load(vocabulary).vocab())
        lengths = row_lengths(settings.shape.n_ctx)
        write_rows(target, make_rows(read_corpus(source), encoder, lengths))

    def export() -> None:
        net, pieces = train.load_net(work / "checkpoint.pt"), Pieces.load(vocabulary)
        write_gguf(f32, net.shape, weights_of(net), pieces, "F32")
        write_gguf(shipped, net.shape, weights_of(net), pieces, settings.type)

    def measure() -> None:
        result = evaluate(shipped, f32, n=settings.n_evaluated)
        write_whole(results, json.dumps(result, indent=1) + "\n")
        log(summary(result))

    def answer() -> None:
        write_whole(answers, json.dumps(greedy_answers(shipped), indent=1) + "\n")

    step = _Steps(log)
    step("text", text, lambda: write_corpus(text, settings.n_bytes, seed))
    step(
        "held-out text",
        held_out,
        lambda: write_corpus(held_out, settings.n_bytes_held_out, seed, held_out=True),
    )
    step("vocabulary", vocabulary, learn)
    step("rows", text_rows, lambda: encode(text, text_rows))
    step("held-out rows", held_out_rows, lambda: encode(held_out, held_out_rows))
    if not _trained(work, settings):
        train.train(settings.shape, settings.plan, work, text_rows, held_out_rows, log=log)
    step("files", shipped, export)
    step("sum", sum_file, lambda: write_whole(sum_file, f"{sha256(shipped)}  {shipped.name}\n"))
    step("answers", answers, answer)
    step("evaluation", results, measure)
    step("card", card, lambda: _write_card(settings, work, shipped))
    out.mkdir(parents=True, exist_ok=True)
    for file in (shipped, sum_file, answers, card, work / PICTURE):
        shutil.copy(file, out)


def _check_settings(settings: Settings, path: Path) -> None:
    """Raise SystemExit if the file at `path` has other settings. Write it if it does not exist."""
    mine = json.loads(json.dumps(asdict(settings)))
    if not path.exists():
        write_whole(path, json.dumps(mine, indent=1) + "\n")
    saved = json.loads(path.read_text(encoding="utf-8"))
    changed = sorted(train.changes(saved, mine)) + sorted(
        f"plan.{name}" for name in train.changes(saved["plan"], mine["plan"])
    )
    if changed:
        raise SystemExit(
            f"{path.parent} was made with another {', '.join(changed)}: use the same settings or "
            "another folder (--work), or delete it"
        )


class _Steps:
    """Performs steps whose output does not exist, and logs their time."""

    def __init__(self, log: train.Log) -> None:
        self._log = log

    def __call__(self, name: str, output: Path, do: Callable[[], None]) -> None:
        if output.exists():
            self._log(f"{name}: skipped, {output} exists")
            return
        begin = time.monotonic()
        do()
        self._log(f"{name}: {output}, {time.monotonic() - begin:.0f} s")


def _trained(work: Path, settings: Settings) -> bool:
    losses = train.read_losses(work / "loss.jsonl")
    done = losses[-1]["step"] if losses and (work / "checkpoint.pt").exists() else 0
    return done >= settings.plan.n_steps


def _write_card(settings: Settings, work: Path, file: Path) -> None:
    losses = train.read_losses(work / "loss.jsonl")
    result: dict[str, Any] = json.loads((work / "results.json").read_text(encoding="utf-8"))
    write_whole(work / PICTURE, loss_picture(losses))
    n_tokens = settings.plan.n_steps * settings.plan.n_tokens
    training = (
        f"It was trained in {settings.plan.n_steps} steps on {n_tokens / 1e6:.1f} million tokens, "
        f"without repeated text, with seed {settings.plan.seed}."
    )
    n_weights = train.load_net(work / "checkpoint.pt").n_weights()
    template = (HERE / "card.md").read_text(encoding="utf-8")
    answers: dict[str, str] = json.loads((work / ANSWERS).read_text(encoding="utf-8"))
    card = model_card(template, file, settings.shape, n_weights, losses, result, answers, training)
    write_whole(work / "README.md", card)


def _log(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--work", type=Path, default=ROOT / "build" / "recipe")
    parser.add_argument("--out", type=Path, default=ROOT / "models")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--steps", type=int, default=Settings().plan.n_steps)
    args = parser.parse_args()
    settings = Settings()
    scale = args.steps / settings.plan.n_steps
    settings = replace(
        settings,
        n_bytes=int(settings.n_bytes * scale),
        plan=replace(settings.plan, seed=args.seed, n_steps=args.steps),
    )
    make(settings, args.work, args.out, _log)
    results = json.loads((args.work / "results.json").read_text(encoding="utf-8"))
    if not results["meets_targets"]:
        raise SystemExit("the model does not meet the targets: see TARGETS in evaluate.py")


if __name__ == "__main__":
    main()
