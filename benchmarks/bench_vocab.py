"""Time to open a vocabulary, and speed of tokenizing: MB/s of text on one thread.

    scripts/bench vocab FILE...

Each FILE is a GGUF file; its tensors may be missing. English is this project's documentation, code
its source; Russian and Chinese are sentences in random order. Hostile texts are one long word, and
random characters. Times are the processor time of one thread. The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Callable, Mapping
from pathlib import Path
from time import thread_time

from lamella.model.gguf import open_gguf
from lamella.model.vocab import Vocab, load_vocab

ROOT = Path(__file__).resolve().parents[1]
RUSSIAN = (
    "Вечером пошёл дождь, и мы решили остаться дома. Старый дом стоял на берегу реки, за которой "
    "начинался лес. Никто не помнил, кто его построил. Учёные измерили скорость течения и сравнили "
    "её с прошлогодней. В 2019 году население города выросло на 3,5 процента. Она открыла окно, и "
    "в комнату вошёл запах сирени. Программа читает файл, разбивает текст на слова и считает их. "
    "«Ты не забыл ключи?» — спросила мать. Поезд отправляется с третьего пути в семь часов утра. "
)
CHINESE = (
    "昨天晚上下了一场大雨，今天早上空气特别清新。这座城市有三千多年的历史，保存着许多古代建筑。"
    "科学家们发现，海洋的温度正在逐年上升。二〇二三年，公司的收入增长了百分之十二。他打开窗户，"
    "看见远处的山上还有积雪。程序先读取文件，然后把文本分成单词。“你吃饭了吗？”奶奶笑着问我。"
    "学习一门语言需要时间和耐心，也需要不断地练习。火车将于七点三十分从第二站台开出。"
)


def sentences(text: str, end: str, n_bytes: int) -> str:
    """Sentences of a text in random order, about `n_bytes` in all."""
    rng, parts = random.Random(0), [part + end for part in text.split(end) if part.strip()]
    n = len(text.encode()) // len(parts)
    return "".join(rng.choices(parts, k=n_bytes // n))


def repeated(files: list[Path], n_bytes: int) -> str:
    text = "\n".join(file.read_text(encoding="utf-8") for file in files)
    return (text * (1 + n_bytes // len(text)))[:n_bytes]


def corpus(n_bytes: int) -> Mapping[str, str]:
    rng = random.Random(0)
    characters = [chr(rng.randrange(0x20, 0xD800)) for _ in range(n_bytes // 3)]
    return {
        "English": repeated(sorted((ROOT / "docs").glob("*.md")), n_bytes),
        "code": repeated(sorted(ROOT.glob("model/**/*.py")), n_bytes),
        "Russian": sentences(RUSSIAN, ". ", n_bytes),
        "Chinese": sentences(CHINESE, "。", n_bytes),
        "one letter": "a" * n_bytes,
        "one word": "".join(rng.choices("abcdefghijklmnopqrstuvwxyz", k=n_bytes)),
        "any character": "".join(characters),
    }


def least_time(run: Callable[..., object], argument: object, n_runs: int) -> float:
    """The least processor time of several runs, in seconds."""
    times = []
    for _ in range(n_runs):
        begin = thread_time()
        run(argument)
        times.append(thread_time() - begin)
    return min(times)


def opened(path: Path) -> Vocab:
    with open_gguf(path, header_only=True) as file:
        return load_vocab(file.metadata)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE")
    parser.add_argument("--mb", type=float, default=1.0, help="megabytes of each text (default: 1)")
    parser.add_argument("--runs", type=int, default=3, help="runs; the fastest counts (default: 3)")
    args = parser.parse_args()
    texts = corpus(round(args.mb * 1e6))
    results = {}
    print("file", "open s", *texts, sep=" | ")
    for path in args.files:
        vocab = opened(path)  # compiles kernels on the first use
        seconds = least_time(opened, path, args.runs)
        speeds = {}
        for name, text in texts.items():
            speeds[name] = len(text.encode()) / 1e6 / least_time(vocab.tokenize, text, args.runs)
        results[path.stem] = {"n_tokens": vocab.n_tokens, "open_s": seconds, "mb_per_s": speeds}
        shown = [f"{seconds:.3f}", *(f"{speed:.1f}" for speed in speeds.values())]
        print(path.stem, *shown, sep=" | ", flush=True)
    print(json.dumps(results))


if __name__ == "__main__":
    main()
