"""arch: model architectures, one file each, and their table.

An architecture builds its graph, and declares its weights where it uses them. To add one, write a
file and add the class to the table. Tested by tests/model/test_arch_weights.py and
tests/model/test_arch_forward.py.
"""

from __future__ import annotations

from difflib import get_close_matches
from importlib import import_module
from pathlib import Path
from typing import Final

from ...base.errors import ModelFileError, UnsupportedModelError
from ..control_file import ARCH as CONTROL_VECTOR
from ..gguf import GGUFFile
from ..keys import Keys
from .adapted import AdapterWeights
from .base import Architecture
from .inputs import GraphInputs, KVLayer
from .nextn import NextN
from .weights import Part, WeightSpec

# the module and the class of each architecture, by its name in files; imported when it is needed
ARCHITECTURES: Final[dict[str, str]] = {
    "afmoe": "afmoe.AFMoE",
    "apertus": "apertus.Apertus",
    "arcee": "arcee.Arcee",
    "arctic": "arctic.Arctic",
    "baichuan": "baichuan.Baichuan",
    "bailingmoe": "bailingmoe.BailingMoE",
    "bailingmoe2": "bailingmoe.BailingMoE2",
    "bert": "bert.Bert",
    "bitnet": "bitnet.BitNet",
    "bloom": "bloom.Bloom",
    "chatglm": "chatglm.ChatGLM",
    "codeshell": "starcoder2.CodeShell",
    "cohere2": "cohere2.Cohere2",
    "cohere2moe": "cohere2moe.Cohere2MoE",
    "command-r": "command_r.CommandR",
    "dbrx": "dbrx.DBRX",
    "deci": "deci.Deci",
    "deepseek": "deepseek.DeepSeek",
    "deepseek2": "deepseek2.DeepSeek2",
    "deepseek32": "deepseek32.DeepSeek32",
    "dots1": "dots1.Dots1",
    "ernie4_5": "ernie4_5.Ernie45",
    "ernie4_5-moe": "ernie4_5.Ernie45MoE",
    "eurobert": "eurobert.EuroBert",
    "exaone": "exaone.Exaone",
    "exaone-moe": "exaone_moe.ExaoneMoE",
    "exaone4": "exaone4.Exaone4",
    "falcon": "falcon.Falcon",
    "falcon-h1": "falcon_h1.FalconH1",
    "gemma": "gemma.Gemma",
    "gemma-embedding": "gemma_embedding.GemmaEmbedding",
    "gemma2": "gemma2.Gemma2",
    "gemma3": "gemma3.Gemma3",
    "gemma3n": "gemma3n.Gemma3n",
    "gemma4": "gemma4.Gemma4",
    "glm-dsa": "deepseek32.GlmDSA",
    "glm4": "glm4.GLM4",
    "glm4moe": "glm4moe.GLM4MoE",
    "gpt-oss": "gpt_oss.GptOss",
    "gpt2": "gpt2.GPT2",
    "gptneox": "gptneox.GPTNeoX",
    "granite": "granite.Granite",
    "granite_swa": "granite_swa.GraniteSWA",
    "granitehybrid": "granite_hybrid.GraniteHybrid",
    "granitemoe": "granite.GraniteMoE",
    "grok": "grok.Grok",
    "hunyuan-dense": "hunyuan.HunyuanDense",
    "hunyuan-moe": "hunyuan.HunyuanMoE",
    "hy_v3": "hy_v3.HyV3",
    "internlm2": "internlm2.InternLM2",
    "jais": "jais.Jais",
    "jais2": "nemotron.Jais2",
    "jamba": "jamba.Jamba",
    "jina-bert-v2": "jina_bert.JinaBertV2",
    "jina-bert-v3": "jina_bert.JinaBertV3",
    "kimi-linear": "kimi_linear.KimiLinear",
    "laguna": "laguna.Laguna",
    "lfm2": "lfm2.LFM2",
    "lfm2moe": "lfm2.LFM2MoE",
    "llama": "llama.Llama",
    "llama-embed": "eurobert.LlamaEmbed",
    "llama4": "llama4.Llama4",
    "maincoder": "maincoder.Maincoder",
    "mamba": "mamba.Mamba",
    "mamba2": "mamba.MambaTwo",
    "mellum": "mellum.Mellum",
    "minicpm": "minicpm.MiniCPM",
    "minicpm3": "minicpm3.MiniCPM3",
    "minimax-m2": "minimax_m2.MiniMaxM2",
    "mistral3": "mistral3.Mistral3",
    "mistral4": "mistral4.Mistral4",
    "modern-bert": "modern_bert.ModernBert",
    "mpt": "mpt.MPT",
    "muse-glimmer": "muse_glimmer.MuseGlimmer",
    "nemotron": "nemotron.Nemotron",
    "nemotron_h": "nemotron_h.NemotronH",
    "nemotron_h_moe": "nemotron_h.NemotronHMoE",
    "neo-bert": "neo_bert.NeoBert",
    "nomic-bert": "nomic_bert.NomicBert",
    "nomic-bert-moe": "nomic_bert.NomicBertMoE",
    "olmo": "olmo.Olmo",
    "olmo2": "olmo2.Olmo2",
    "olmoe": "olmoe.OLMoE",
    "openelm": "openelm.OpenELM",
    "orion": "orion.Orion",
    "paddleocr": "ernie4_5.PaddleOCR",
    "pangu-embedded": "pangu_embedded.PanguEmbedded",
    "phi2": "phi2.Phi2",
    "phi3": "phi3.Phi3",
    "phimoe": "phimoe.PhiMoE",
    "plamo": "plamo.PLaMo",
    "plamo2": "plamo2.PLaMo2",
    "plm": "plm.PLM",
    "qwen": "qwen.Qwen",
    "qwen2": "qwen2.Qwen2",
    "qwen2moe": "qwen2moe.Qwen2MoE",
    "qwen2vl": "qwen2vl.Qwen2VL",
    "qwen3": "qwen3.Qwen3",
    "qwen35": "qwen3next.Qwen35",
    "qwen35moe": "qwen3next.Qwen35MoE",
    "qwen3moe": "qwen3moe.Qwen3MoE",
    "qwen3next": "qwen3next.Qwen3Next",
    "qwen3vl": "qwen3vl.Qwen3VL",
    "qwen3vlmoe": "qwen3vl.Qwen3VLMoE",
    "refact": "refact.Refact",
    "seed_oss": "seed_oss.SeedOSS",
    "smallthinker": "smallthinker.SmallThinker",
    "smollm3": "smollm3.SmolLM3",
    "spark2_5": "spark2_5.Spark25",
    "stablelm": "stablelm.StableLM",
    "starcoder": "gpt2.StarCoder",
    "starcoder2": "starcoder2.StarCoder2",
    "talkie": "talkie.Talkie",
    "xverse": "internlm2.XVERSE",
}


def find_architecture(name: str, path: Path) -> type[Architecture]:
    """Return the architecture with this name. `path` is the model's file, for messages.

    Raises:
        UnsupportedModelError: no architecture has this name. The message has the nearest name and
            lists the supported ones.
    """
    if name not in ARCHITECTURES:
        near = get_close_matches(name, ARCHITECTURES, 1)
        raise UnsupportedModelError(
            f"{path}: architecture {name!r} is not supported"
            f"{f'; the nearest name is {near[0]!r}' if near else ''}"
            f"; supported: {', '.join(ARCHITECTURES)}"
        )
    module, _, kind = ARCHITECTURES[name].partition(".")
    found: type[Architecture] = getattr(import_module(f".{module}", __name__), kind)
    assert issubclass(found, Architecture), f"{found} is no architecture"
    return found


def open_architecture(file: GGUFFile) -> Architecture:
    """Return the architecture of a file, with its hyperparameters.

    Raises:
        UnsupportedModelError: an unknown architecture, or a value that is not supported.
        ModelFileError: a key is missing, or has a wrong type or an invalid value; or the file is an
            adapter or a control vector.
    """
    if file.metadata.str("general.type", "") == "adapter":
        raise ModelFileError(
            f"{file.path}: this is an adapter: open its model, with --lora {file.path}"
        )
    name = file.metadata.str("general.architecture")
    if name == CONTROL_VECTOR:
        raise ModelFileError(
            f"{file.path}: this is a control vector: open its model, with --control-vector "
            f"{file.path}"
        )
    return find_architecture(name, file.path)(Keys(file))


def open_block(file: GGUFFile) -> Architecture:
    """Return the first block of a file that predicts further tokens, as a model of its own.

    Raises:
        As `open_architecture`. UnsupportedModelError: the file has no such block, too.
    """
    return NextN(Keys(file), open_architecture(file))


__all__ = [
    "ARCHITECTURES",
    "AdapterWeights",
    "Architecture",
    "GraphInputs",
    "KVLayer",
    "Part",
    "WeightSpec",
    "find_architecture",
    "open_architecture",
    "open_block",
]
