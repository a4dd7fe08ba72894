"""guide: constrains generated text to a grammar or a JSON schema.

    compiler = Compiler(vocab)
    matcher = compiler.compile(GrammarSpec(GrammarKind.REGEX, "[0-9]{4}")).matcher()
    masks = MaskComputer(n_mask_bits(vocab), 1)
    masks.begin([matcher])
    [mask] = masks.take()        # the tokens that may follow, a bit each
    matcher.accept(token)

llguidance does the work (https://github.com/guidance-ai/llguidance). A spec says what a request
asks for, `Compiler` checks and compiles it, a `Matcher` follows one text.
"""

from ..batch import Mask
from .chat import chat_spec
from .compiler import CompiledGrammar, Compiler, validate
from .lazy import LazyMatcher
from .masks import MaskComputer
from .matcher import Matcher
from .params import GrammarParams
from .spec import GrammarKind, GrammarSpec, Loosened
from .tokens import n_mask_bits
from .triggers import Trigger, TriggerKind, Triggers

__all__ = [
    "CompiledGrammar",
    "Compiler",
    "GrammarKind",
    "GrammarParams",
    "GrammarSpec",
    "LazyMatcher",
    "Loosened",
    "Mask",
    "MaskComputer",
    "Matcher",
    "Trigger",
    "TriggerKind",
    "Triggers",
    "chat_spec",
    "validate",
    "n_mask_bits",
]
