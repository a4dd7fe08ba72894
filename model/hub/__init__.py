"""hub: models from Hugging Face and other servers, in the caches and downloaded.

    path = find_model(parse_model("user/repo:Q4_K_M"))
    path = find_url("https://example.com/model.gguf")

huggingface-hub is imported on first use, and NumPy only to read headers.
"""

from .cached import CachedModel, cached_models, remove, select, similar
from .files import HubModel, parse_model
from .find import DownloadProgress, find_cached, find_header, find_model
from .library import is_hub, using_token
from .urls import find_url, find_url_header

__all__ = [
    "CachedModel",
    "DownloadProgress",
    "HubModel",
    "cached_models",
    "find_cached",
    "find_header",
    "find_model",
    "find_url",
    "find_url_header",
    "is_hub",
    "parse_model",
    "remove",
    "select",
    "similar",
    "using_token",
]
