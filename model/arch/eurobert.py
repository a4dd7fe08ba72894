"""eurobert: EuroBERT, Jina Embeddings 5. A llama whose tokens see later ones.

llama-embed: Llama Embed Nemotron. Another one.

Tested by tests/model/test_arch_embeddings.py.
"""

from __future__ import annotations

from .encoder import Encoder
from .llama import Llama


class EuroBert(Encoder):
    """arXiv 2503.05500"""

    name = "eurobert"


class LlamaEmbed(Encoder, Llama):
    """arXiv 2511.07025"""

    name = "llama-embed"
