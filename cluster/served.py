"""A model that the application serves. Knows no Ray. Tested by tests/cluster/test_replica.py."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ..model.find import find_file
from ..model.shipped import shipped_model
from ..runtime.params import OpenParams
from ..server.config import ServerConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """A model of the application, and how to serve it. Each node finds the file by itself.

    Attributes:
        name: for clients.
        source: a file, or a name as for `lamella run`; "": the small model that ships.
        params: how to open it.
        defaults: of `RequestParams`.
        config: of the HTTP server.
        offline: download nothing.
    """

    name: str
    source: str = ""
    params: OpenParams = field(default_factory=OpenParams)
    defaults: Mapping[str, Any] = field(default_factory=dict)
    config: ServerConfig = field(default_factory=ServerConfig)
    offline: bool = False

    def opened_params(self, *, header_only: bool = False) -> OpenParams:
        """The options to open it with on this node. Downloads the model if it is not here, or only
        the file's header.

        Raises:
            ModelFileError: there is no such model. DownloadError: it cannot be downloaded.
        """
        if self.source:
            path = find_file(self.source, offline=self.offline, header_only=header_only)
        else:
            path = shipped_model()
        return self.params.change(path=str(path), alias=self.name)
