"""What the model of the chat page's tests answers, and the prompts that it gets."""

from __future__ import annotations

from typing import Final

from tools_world import call

MARKDOWN: Final = """# Title

Some *emphasis*, **strong**, `code` and [a link](https://example.com/a).

```python
def f(x):  # a comment
    return "text" + str(1)
```

1. one
   - inner
2. two

| a | b |
|---|--:|
| 1 | 2 |

> quoted

- [x] done
"""
SCRIPTS: Final = {
    "markdown": MARKDOWN,
    "think": "<think>Let me think.</think>The answer is 42.",
    "ponder": "<think>" + "on and " * 20_000 + "</think>Enough.",
    "endless": "again and " * 20_000,
    "short": "Once upon a time",
    "weather": "I look.\n" + call("get_weather", '{"city": "Oslo"}'),
    "sunny": "It is **sunny**.",
    "json": '{"n": 1}',
}
prompts: list[str] = []


def play(prompt: str) -> str:
    prompts.append(prompt)
    last = prompt.rpartition("<|im_start|>user\n")[2]
    if "<|im_start|>tool" in last:
        return SCRIPTS["sunny"]
    for word, text in SCRIPTS.items():
        if last.startswith(word):
            return text
    question = last.partition("<|im_end|>")[0]
    return f"You said: {question}" + (" So it goes on." if last.endswith("Once") else "")
