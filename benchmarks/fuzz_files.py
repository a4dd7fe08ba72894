"""Fuzzes GGUF files: each is opened as a model, with its vocabulary, template and weights."""

from __future__ import annotations

import random
import tempfile
import time
from pathlib import Path
from typing import Final

from fuzz_target import Outcome, corpus, mutated

from lamella.base.errors import ModelFileError, RequestError
from lamella.model.arch import open_architecture
from lamella.model.chat.template import model_template
from lamella.model.file_weights import find_weights
from lamella.model.gguf import Array, GGUFFile, open_gguf
from lamella.model.vocab import load_vocab

CPU_SECONDS: Final = 10.0
# counts, sizes and offsets: the extremes of their types, and products that wrap around
NUMBERS: Final = (
    *(0, 1, 2, 3, 7, 8, 9, 31, 32, 127, 128, 255, 2**15, 2**16 - 1, 2**24, 2**31 - 1, 2**31),
    *(2**32 - 1, 2**32, 2**40, 2**61, 2**62, 2**63 - 1, 2**63, 2**64 - 8, 2**64 - 1),
)
WORDS: Final = (
    *(n.to_bytes(8, "little") for n in NUMBERS),
    *((n % 2**32).to_bytes(4, "little") for n in NUMBERS),
    *(b"\xff\xfe\x00", b"GGUF", b"tokenizer.chat_template", b"{{ a }}", b"\xf0\x9f\x98\x80"),
)


class Files:
    """GGUF files that are opened as a server opens them."""

    def __init__(self) -> None:
        self._seeds = corpus("gguf")
        self._folder = Path(tempfile.mkdtemp(prefix="lamella-fuzz-"))

    def make(self, number: int) -> bytes:
        rng = random.Random(number)
        data = bytearray(mutated(rng, self._seeds, WORDS) if rng.random() < 0.5 else b"")
        if not data:  # no byte moves
            data = bytearray(rng.choice(self._seeds))
            for _ in range(rng.randint(1, 3)):
                word = rng.choice(WORDS)
                at = rng.randrange(len(data))
                data[at : at + len(word)] = word
        return bytes(data)

    def show(self, number: int) -> str:
        return repr(self.make(number))

    def try_input(self, number: int) -> Outcome:
        path = self._folder / "input.gguf"
        path.write_bytes(self.make(number))
        begin = time.process_time()
        what = _opened(path)
        seconds = time.process_time() - begin
        return Outcome(what, f"{seconds:.1f} s" if seconds > CPU_SECONDS else "", seconds)


def _opened(path: Path) -> str:
    try:
        file = open_gguf(path)
    except ModelFileError:
        return "refused"
    with file:
        parts = (_read, _vocabulary, _template, _weights)
        return "opened: " + ", ".join(part.__name__[1:] for part in parts if _works(part, file))


def _works(part: object, file: GGUFFile) -> bool:
    assert callable(part)
    try:
        part(file)
    except (ModelFileError, RequestError):
        return False
    return True


def _read(file: GGUFFile) -> None:
    for key in file.metadata:
        value = file.metadata[key]
        if isinstance(value, Array):
            list(value)
    for info in file.tensors.values():
        file.read(info).max(initial=0)


def _vocabulary(file: GGUFFile) -> None:
    vocab = load_vocab(file.metadata)
    ids = vocab.tokenize("Hello, world! 😀 <s>\x00 " + "a" * 300)
    vocab.detokenize(ids, special=True)


def _template(file: GGUFFile) -> None:
    model_template(file.metadata).render([{"role": "user", "content": "Hi"}])


def _weights(file: GGUFFile) -> None:
    arch = open_architecture(file)
    find_weights(file, arch.weights(), arch.ignores)
    arch.describe(100)
