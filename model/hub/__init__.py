"""hub: models from Hugging Face, downloaded into the cache shared with Hugging Face's programs.

    path = find_model(parse_model("user/repo:Q4_K_M"))

huggingface-hub is imported on first use.
"""

from .files import HubModel, parse_model
from .find import DownloadProgress, find_header, find_model

__all__ = [
    "DownloadProgress",
    "HubModel",
    "find_header",
    "find_model",
    "parse_model",
]
