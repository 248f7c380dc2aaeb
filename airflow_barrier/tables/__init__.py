"""The port for table formats (:mod:`.port`), and one adapter a file."""

from __future__ import annotations


def is_rest(uri: str) -> bool:
    """Whether a catalog's URI is a REST catalog's."""
    return uri.startswith(("http://", "https://"))
