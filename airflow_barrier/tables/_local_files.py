"""Files of a local warehouse. pyiceberg's FileIO does the same, but takes a task more than a second to import."""

from __future__ import annotations

import os
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path
from urllib.parse import urlparse

#: The property by which a deployment chooses pyiceberg's storage code itself.
_CHOSEN = "py-io-impl"


@dataclass(frozen=True)
class LocalFile:
    location: str

    def open(self) -> BufferedReader:
        return local_path(self.location).open("rb")

    def exists(self) -> bool:
        return local_path(self.location).exists()


class LocalFiles:
    """The part of pyiceberg's FileIO that reading, looking and deleting take."""

    def new_input(self, location: str) -> LocalFile:
        return LocalFile(location)

    def delete(self, location: str) -> None:
        local_path(location).unlink()


def is_local(uri: str, properties: dict[str, str]) -> bool:
    return urlparse(uri).scheme in ("", "file") and _CHOSEN not in properties


def local_path(uri: str) -> Path:
    """Return where a local URI leads, read as pyiceberg reads it."""
    parts = urlparse(uri)
    return Path(f"{parts.netloc}{parts.path}") if parts.scheme else Path(os.path.abspath(uri))
