"""Where sources and sinks may lie: a worker opens them with its own rights, and any DAG's author names them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

from airflow_barrier.protocol.errors import ConfigurationError

#: Storages that fsspec here and Hadoop in Spark both know. What else fsspec opens are hosts (http, ssh, github) and
#: files that say what to open next (zip, simplecache, reference), which no source needs.
SCHEMES = frozenset({"file", "hdfs", "s3", "s3a", "gs", "abfs", "abfss"})
# other names for the same place
_SAME = {"s3a": "s3", "abfss": "abfs"}


def location_fault(location: str) -> str | None:
    """Return why nobody may name that place, whatever a connection allows, as "expected …, found …"; None: one may.

    >>> location_fault("s3://in/shopping/"), location_fault("/in/shopping")
    (None, None)
    >>> location_fault("http://169.254.169.254/")
    "expected a storage (abfs, abfss, file, gs, hdfs, s3, s3a), found 'http'"
    """
    if "::" in location:
        return "expected the address of one folder, found a chain of them ('::')"
    scheme, separator, rest = location.partition("://")
    if not separator:
        scheme, rest = "file", location
    if scheme not in SCHEMES:
        return f"expected a storage ({', '.join(sorted(SCHEMES))}), found {scheme!r}"
    if scheme == "file" and not rest.startswith("/"):
        return "expected an absolute path or a URL, since Spark works elsewhere, found a relative one"
    if scheme not in ("file", "hdfs") and rest.startswith("/"):
        return "expected a bucket or container after '://', found none"
    parts = rest.strip("/").split("/")
    if odd := next((part for part in parts if part in (".", "..")), None):
        return f"expected a path that means one place, found one with {odd!r} in it"
    if "" in parts[1:]:
        return "expected a path that Hadoop can read, found one with an empty part ('//')"
    return None


@dataclass(frozen=True)
class SourceRoots:
    """The folders that a connection allows, each with all that is under it. None: every storage, and local folders
    only if ``local``.

    >>> only = SourceRoots(("s3://in/shop",))
    >>> only.allow("s3a://in/shop/2017/"), only.allow("s3://in/shopping")
    (True, False)
    """

    roots: tuple[str, ...] = ()
    local: bool = True

    @classmethod
    def of(cls, roots: Sequence[str], warehouse: str) -> SourceRoots:
        """Local folders need no root where the warehouse is one too: there workers and Spark share a host's disk."""
        for root in roots:
            if fault := location_fault(root):
                raise ConfigurationError(f"source_roots: {root!r}: {fault}")
        return cls(tuple(roots), local=_place(warehouse)[0] == "file")

    def allow(self, location: str) -> bool:
        here = _place(location)
        if not self.roots:
            return self.local or here[0] != "file"
        return any(here[: len(root)] == root for root in map(_place, self.roots))

    def check(self, what: str, location: str) -> None:
        """Raise ConfigurationError if ``what``, such as `source shopping`, lies elsewhere."""
        if not self.allow(location):
            raise ConfigurationError(  # safety: source-roots
                f"{what}: expected a place that the connection allows ({self._said()}), found {location}; correct it, "
                "or have its place added to the connection's extra source_roots"
            )

    def _said(self) -> str:
        return f"source_roots: {', '.join(self.roots)}" if self.roots else "without source_roots: no local folders"


def _place(location: str) -> tuple[str, ...]:
    """Scheme, host or bucket, and each part of the path: of a local one where it leads in the end."""
    scheme, separator, rest = location.partition("://")
    if not separator:
        scheme, rest = "file", location
    if scheme == "file":
        rest = os.path.realpath(rest)
    host, _, path = rest.partition("/")
    return (_SAME.get(scheme, scheme), host, *filter(None, path.split("/")))
