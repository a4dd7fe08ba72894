"""hub: models from Hugging Face and other servers, in the caches and downloaded.

    path = find_model(parse_model("user/repo:Q4_K_M"))

huggingface-hub is imported on first use. The modules `headers` and `urls` read GGUF files and are
slow to import, so they are not imported here.
"""

from .cached import CachedModel, cached_models, remove, select, similar
from .files import HubModel, parse_model
from .find import DownloadProgress, find_cached, find_model
from .library import is_hub, using_token
from .names import FORMS, read_url

__all__ = [
    "FORMS",
    "CachedModel",
    "DownloadProgress",
    "HubModel",
    "cached_models",
    "find_cached",
    "find_model",
    "is_hub",
    "parse_model",
    "read_url",
    "remove",
    "select",
    "similar",
    "using_token",
]
