"""Trains a network on rows of tokens, with checkpoints from which training resumes.

An interrupted run ends with the same weights as an uninterrupted one: the rows of a step depend on
the step alone, and a checkpoint has the optimizers' state. Muon (kellerjordan.github.io/posts/muon)
trains the matrices, AdamW the embedding and the norms. Tested by tests/recipe/test_train.py.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F  # noqa: N812 - its usual name
from net import Net
from net_shape import Shape
from rows import read_rows
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Plan:
    """Parameters of training. Learning rates rise over `n_warmup` steps, stay, and fall."""

    n_steps: int = 4500
    n_tokens: int = 4096  # per step; the rows of a step have one length
    rate: float = 4e-3  # AdamW's learning rate, for the embedding and the norms
    rate_muon: float = 2e-2
    n_warmup: int = 100
    falling: float = 0.6  # share of the steps in which the rates fall to 0
    weight_decay: float = 0.05
    clip: float = 1.0
    bf16: bool | None = None  # None: if this machine multiplies faster in bf16
    seed: int = 1
    checkpoint_every: int = 250
    measure_every: int = 250  # the loss on held-out rows
    log_every: int = 25


Log = Callable[[str], None]


def train(
    shape: Shape,
    plan: Plan,
    folder: Path,
    train_rows: Path,
    held_out_rows: Path,
    *,
    log: Log = print,
    stop_at: int | None = None,
) -> Net:
    """Train a network, from the checkpoint in `folder` if there is one.

    Writes `checkpoint.pt`, and `loss.jsonl` with a line for every logged step. `stop_at` interrupts
    training after that step.
    """
    torch.manual_seed(plan.seed)
    net = Net(shape)
    optimizers = make_optimizers(net, plan)
    begin, bf16 = _resume(folder, net, optimizers, plan)
    log(
        f"{net.n_weights() / 1e6:.2f} million weights, {plan.n_tokens} tokens per step, "
        f"{'bf16' if bf16 else 'f32'}, {torch.get_num_threads()} threads, from step {begin}"
    )
    batches = Batches(train_rows, plan)
    held_out = Batches(held_out_rows, plan)
    progress = Progress(plan, begin, folder / "loss.jsonl", log)
    for step in range(begin, plan.n_steps if stop_at is None else stop_at):
        _set_rates(optimizers, plan, step)
        loss = batch_loss(net, *batches[step], bf16=bf16)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(net.parameters(), plan.clip)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        done = step + 1
        measured = None
        if done % plan.measure_every == 0 or done == plan.n_steps:
            measured = mean_loss(net, held_out, bf16=bf16)
        progress.step(done, loss.item(), measured)
        if done % plan.checkpoint_every == 0 or done in (plan.n_steps, stop_at):
            _save(folder, net, optimizers, plan, done, bf16)
    return net


class Batches:
    """The rows of each step, all of one length. Each epoch has every row in a new random order."""

    def __init__(self, path: Path, plan: Plan) -> None:
        self._table = read_rows(path)
        self._plan = plan
        self._epoch = -1
        self._order: list[tuple[int, npt.NDArray[np.int64]]] = []  # row length, numbers of rows
        self._draw(0)
        assert self._order, f"{path} has too few rows for a step of {plan.n_tokens} tokens"

    def __len__(self) -> int:
        """The number of steps in an epoch."""
        return len(self._order)

    def __getitem__(self, step: int) -> tuple[Tensor, Tensor]:
        """Return the tokens [n_rows, n_ctx + 1] of a step, and a mask of those to learn."""
        epoch, at = divmod(step, len(self._order))
        self._draw(epoch)
        length, chosen = self._order[at]
        tokens, masks = self._table[length]
        return torch.from_numpy(tokens[chosen].astype(np.int64)), torch.from_numpy(masks[chosen])

    def _draw(self, epoch: int) -> None:
        if epoch == self._epoch:
            return
        self._epoch = epoch
        rng = np.random.default_rng((self._plan.seed, epoch))
        batches = []
        for length, (tokens, _) in self._table.items():
            n_rows = max(1, self._plan.n_tokens // length)
            order = rng.permutation(len(tokens))
            batches += [
                (length, order[i : i + n_rows]) for i in range(0, len(order) - n_rows + 1, n_rows)
            ]
        self._order = [batches[i] for i in rng.permutation(len(batches))]


def batch_loss(net: Net, tokens: Tensor, mask: Tensor, *, bf16: bool) -> Tensor:
    """Return the mean cross-entropy of the tokens to learn."""
    with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
        logits = net(tokens[:, :-1])
    targets = tokens[:, 1:].masked_fill(~mask[:, 1:], -100)
    return F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten(), ignore_index=-100)


def mean_loss(net: Net, batches: Batches, *, bf16: bool, n_batches: int = 8) -> float:
    """Return the mean loss over the first batches."""
    with torch.no_grad():
        losses = [
            batch_loss(net, *batches[i], bf16=bf16).item()
            for i in range(min(n_batches, len(batches)))
        ]
    return float(np.mean(losses))


def make_optimizers(net: Net, plan: Plan) -> list[torch.optim.Optimizer]:
    """Return Muon for the layers' matrices, with weight decay, and AdamW for the rest."""
    layers = dict(net.blk.named_parameters())
    matrices = [p for p in layers.values() if p.ndim == 2]
    norms = [p for p in layers.values() if p.ndim == 1]
    muon = torch.optim.Muon(
        matrices, lr=plan.rate_muon, weight_decay=plan.weight_decay, momentum=0.95, nesterov=True
    )
    adam = torch.optim.AdamW(
        [*norms, net.output_norm, net.token_embd], lr=plan.rate, betas=(0.9, 0.97), eps=1e-9,
        weight_decay=0.0,
    )  # fmt: skip
    return [muon, adam]


def _set_rates(optimizers: list[torch.optim.Optimizer], plan: Plan, step: int) -> None:
    for optimizer, rate in zip(optimizers, (plan.rate_muon, plan.rate), strict=True):
        for group in optimizer.param_groups:
            group["lr"] = rate * share_of_rate(plan, step)


def share_of_rate(plan: Plan, step: int) -> float:
    """Return the factor of the learning rates for a step, above 0 and up to 1."""
    rising = (step + 1) / max(1, plan.n_warmup)
    falling = (plan.n_steps - step) / (plan.falling * plan.n_steps + 1)
    return min(1.0, rising, falling)


def faster_in_bf16() -> bool:
    """True if a measurement shows that this machine multiplies clearly faster in bf16."""

    def seconds(dtype: torch.dtype) -> float:
        a, b = torch.ones(2048, 256, dtype=dtype), torch.ones(256, 768, dtype=dtype)
        times = []
        for _ in range(8):
            begin = time.perf_counter()
            a @ b
            times.append(time.perf_counter() - begin)
        return min(times)

    return seconds(torch.bfloat16) < 0.7 * seconds(torch.float32)


class Progress:
    """Logs progress and the time left, and writes the losses to a file."""

    def __init__(self, plan: Plan, begin: int, path: Path, log: Log) -> None:
        self._plan, self._begin = plan, begin
        self._path, self._log = path, log
        self._started = time.monotonic()
        self._losses: list[float] = []
        lines = [line for line in read_losses(path) if line["step"] <= begin]
        path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")

    def step(self, done: int, loss: float, measured: float | None) -> None:
        self._losses.append(loss)
        if measured is None and done % self._plan.log_every and done != self._plan.n_steps:
            return
        line = {"step": done, "loss": float(np.mean(self._losses))}
        if measured is not None:
            line["held_out"] = measured
        self._losses = []
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
        seconds = time.monotonic() - self._started
        rate = (done - self._begin) / seconds
        left = (self._plan.n_steps - done) / rate
        more = "" if measured is None else f", held out {measured:.3f}"
        self._log(
            f"step {done} of {self._plan.n_steps}: loss {line['loss']:.3f}{more}, "
            f"{rate * self._plan.n_tokens:.0f} tokens/s, {left / 60:.0f} min left"
        )


def read_losses(path: Path) -> list[dict[str, float]]:
    """Return the lines of a `loss.jsonl`; empty if the file does not exist."""
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


# --- checkpoints ---


def _save(
    folder: Path,
    net: Net,
    optimizers: list[torch.optim.Optimizer],
    plan: Plan,
    step: int,
    bf16: bool,
) -> None:
    state = {
        "step": step,
        "bf16": bf16,
        "plan": asdict(plan),
        "shape": asdict(net.shape),
        "net": net.state_dict(),
        "optimizers": [optimizer.state_dict() for optimizer in optimizers],
    }
    part = folder / "checkpoint.part"
    torch.save(state, part)
    part.replace(folder / "checkpoint.pt")


def _resume(
    folder: Path, net: Net, optimizers: list[torch.optim.Optimizer], plan: Plan
) -> tuple[int, bool]:
    """Load the checkpoint if there is one. Return (the next step, bf16).

    A new run decides once if it multiplies in bf16.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "checkpoint.pt"
    if not path.exists():
        return 0, faster_in_bf16() if plan.bf16 is None else plan.bf16
    state = torch.load(path, weights_only=True)
    for name, mine in (("plan", asdict(plan)), ("shape", asdict(net.shape))):
        changed = sorted(changes(state[name], mine))
        if changed:
            raise SystemExit(
                f"{path} was trained with another {', '.join(changed)}: use the same settings, or "
                "delete the file to begin again"
            )
    net.load_state_dict(state["net"])
    for optimizer, saved in zip(optimizers, state["optimizers"], strict=True):
        optimizer.load_state_dict(saved)
    step: int = state["step"]
    bf16: bool = state["bf16"]
    return step, bf16


def changes(saved: dict[str, Any], mine: dict[str, Any]) -> Iterator[str]:
    """Yield the names whose values differ."""
    return (key for key in mine if saved.get(key) != mine[key])


def load_net(path: Path) -> Net:
    """Return the network of a checkpoint."""
    state = torch.load(path, weights_only=True)
    net = Net(Shape(**state["shape"]))
    net.load_state_dict(state["net"])
    return net
