"""Files of the warehouse: metadata documents, empty manifest lists, and small text files beside the tables."""

from __future__ import annotations

import gzip
import logging
import re
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlparse

import msgspec

from airflow_barrier.protocol.errors import CatalogUnavailableError, ConfigurationError
from airflow_barrier.tables._local_files import LocalFiles, is_local, local_path
from airflow_barrier.tables._metadata import Document, Snapshot

if TYPE_CHECKING:
    from pyiceberg.io import FileIO

_GZIP = ".gz.metadata.json"
_PLAIN = ".metadata.json"
_LOCAL = LocalFiles()
_VERSION = re.compile(r"^v?(\d+)")
#: How often a folder is made anew that goes again before a file is in it.
_TRIES = 100

#: Requests at once to what is far: no more than `requests` and pyarrow keep connections for.
_AT_ONCE = 8

_Item = TypeVar("_Item")
_Found = TypeVar("_Found")

log = logging.getLogger(__name__)


def at_once(work: Callable[[_Item], _Found], items: Sequence[_Item]) -> list[_Found]:
    """Return what ``work`` makes of each item, in their order. Several are worked on at a time, since each mostly
    waits.

    Raises the first error, after all work that had begun has ended.
    """
    if len(items) < 2:
        return [work(item) for item in items]
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        return list(pool.map(work, items))


class Documents:
    """Reads and writes files by URI, with whatever storage the warehouse lies on.

    ``properties`` are those of a pyiceberg catalog (`s3.endpoint` and the like). A file that is not there raises
    FileNotFoundError; storage that does not answer raises CatalogUnavailableError.
    """

    def __init__(self, properties: Mapping[str, str]) -> None:
        self.properties = dict(properties)
        self._by_scheme: dict[str, FileIO] = {}

    def io(self, uri: str) -> FileIO:
        scheme = urlparse(uri).scheme
        if scheme not in self._by_scheme:
            from pyiceberg.io import load_file_io

            self._by_scheme[scheme] = load_file_io(self.properties, uri)
        return self._by_scheme[scheme]

    def _files(self, uri: str) -> LocalFiles | FileIO:
        return _LOCAL if is_local(uri, self.properties) else self.io(uri)

    def of_each(self, work: Callable[[str, str], _Found], locations: Mapping[str, str]) -> dict[str, _Found]:
        """Return what ``work`` makes of each table and the location of its document; :func:`at_once`, unless all are
        local.
        """
        if all(is_local(location, self.properties) for location in locations.values()):
            return {table: work(table, location) for table, location in locations.items()}
        return dict(zip(locations, at_once(lambda each: work(*each), list(locations.items())), strict=True))

    def read(self, location: str) -> Document:
        data = self.read_bytes(location)
        document: Document = msgspec.json.decode(gzip.decompress(data) if location.endswith(_GZIP) else data)
        return document

    # msgspec: documents grow with the snapshots that a table keeps, and Python's own json is several times slower
    def write(self, document: Document, previous: str) -> str:
        """Write the document that follows the one at ``previous``, beside it. Returns its location."""
        folder, _, name = previous.rpartition("/")
        version = _VERSION.match(name)
        following = int(version[1]) + 1 if version else 0
        location = f"{folder}/{following:05d}-{uuid.uuid4()}{_GZIP if name.endswith(_GZIP) else _PLAIN}"
        data = msgspec.json.encode(document)
        self.write_bytes(location, gzip.compress(data) if location.endswith(_GZIP) else data)
        return location

    def write_empty_manifest_list(self, snapshot: Snapshot, format_version: int, io: FileIO | None = None) -> None:
        """The (empty) list of manifests that ``snapshot``, a root without rows, names. ``io``: default, this one's."""
        # The library's own writer function refuses version 3, whose schema it does have.
        from pyiceberg.avro.file import AvroOutputFile
        from pyiceberg.manifest import MANIFEST_LIST_FILE_SCHEMAS, ManifestFile

        described = {
            "snapshot-id": str(snapshot["snapshot-id"]),
            "parent-snapshot-id": "null",
            "sequence-number": str(snapshot["sequence-number"]),
            "format-version": str(format_version),
        }
        if "first-row-id" in snapshot:
            described["first-row-id"] = str(snapshot["first-row-id"])
        location = snapshot["manifest-list"]
        with _storage(location):
            output = (io or self.io(location)).new_output(location)
            schema = MANIFEST_LIST_FILE_SCHEMAS[format_version]
            with AvroOutputFile[ManifestFile](output, schema, "manifest_file", metadata=described):
                pass

    def delete(self, locations: Iterable[str]) -> None:
        """Delete files that nothing names any more; one that cannot be deleted stays, and the log says so."""
        failed: list[str] = []

        def delete(location: str, _: str) -> None:
            try:
                self._files(location).delete(location)
            except FileNotFoundError:
                pass
            except OSError as error:
                failed.append(f"{location}: {error}")

        self.of_each(delete, {location: location for location in locations})
        if failed:
            log.warning(
                "storage: expected to delete files that nothing names any more, found that %d could not be deleted, "
                "the first is %s. They only take up space, but nobody tries again: see whether these credentials may "
                "delete, then delete the files by hand",
                len(failed),
                failed[0],
            )

    def delete_if_empty(self, folders: Iterable[str]) -> None:
        """Only a local folder is a thing of its own: in an object store there is none without files."""
        for folder in folders:
            if is_local(folder, self.properties):
                with suppress(OSError):  # it is not empty, or not there
                    local_path(folder).rmdir()

    def clear(self, folder: str) -> None:
        """Delete a folder, with all that is in it. If that cannot be done, the log says so."""
        try:
            names = self.names(folder, deep=True)
        except (CatalogUnavailableError, ConfigurationError) as error:
            log.warning("expected to delete what is left in %s, which nobody reads any more; found: %s", folder, error)
            return
        self.delete(f"{folder}/{name}" for name in names)
        folders = {f"{folder}/{parent}" for name in names for parent in PurePosixPath(name).parents if parent.name}
        self.delete_if_empty([*sorted(folders, key=len, reverse=True), folder])

    def read_bytes(self, uri: str) -> bytes:
        with self.opened(uri) as stream:
            data: bytes = stream.read()
            return data

    @contextmanager
    def opened(self, uri: str) -> Iterator[Any]:
        """The file, to be read from; it can be sought in."""
        with _storage(uri), self._files(uri).new_input(uri).open() as stream:
            yield stream

    def write_bytes(self, uri: str, data: bytes) -> None:
        """Write or replace the file: who reads it meanwhile gets all of the old content or all of the new."""
        with _storage(uri):
            if urlparse(uri).scheme in ("", "file"):
                _replace_local(uri, data)
                return
            # An object store shows a new object when it is complete.
            with self.io(uri).new_output(uri).create(overwrite=True) as stream:
                stream.write(data)

    def names(self, folder: str, deep: bool = False) -> list[str]:
        """The names of the files in a folder, ``deep``: or in one below it; none if it is not there.

        Raises ConfigurationError.
        """
        if is_local(folder, self.properties):
            here = local_path(folder)
            with _storage(folder), suppress(FileNotFoundError):
                found = here.rglob("*") if deep else here.iterdir()
                return [str(path.relative_to(here)) for path in found if path.is_file()]
            return []
        from pyarrow.fs import FileSelector
        from pyiceberg.io.pyarrow import PyArrowFileIO

        io = self.io(folder)
        if not isinstance(io, PyArrowFileIO):
            raise ConfigurationError(
                f"storage of {folder}: expected pyiceberg's PyArrowFileIO, which can list a folder, found "
                f"{type(io).__name__}; leave py-io-impl out of the catalog's properties for this command"
            )
        scheme, netloc, path = io.parse_location(folder)
        with _storage(folder):
            selector = FileSelector(path, allow_not_found=True, recursive=deep)
            infos = io.fs_by_scheme(scheme, netloc).get_file_info(selector)
        return [info.path.removeprefix(path).lstrip("/") for info in infos if info.is_file]

    def exists(self, uri: str) -> bool:
        with _storage(uri):
            return self._files(uri).new_input(uri).exists()


def _replace_local(uri: str, data: bytes) -> None:
    path = local_path(uri)
    # Not named after the file, whose name may have the longest length that there is.
    part = path.with_name(f".{uuid.uuid4()}.part")
    try:
        _write_in_folder(part, data)
        part.replace(path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise


def _write_in_folder(path: Path, data: bytes) -> None:
    """Makes the folder; also while another process deletes it, or one above it, since it was empty."""
    for left in reversed(range(_TRIES)):
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
            return
        except (FileNotFoundError, FileExistsError):  # it is made and gone between two calls, or it is there and gone
            if not left:
                raise


@contextmanager
def _storage(uri: str) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError:
        raise
    except OSError as error:
        raise CatalogUnavailableError(
            f"storage: expected to reach {uri}, found {error}; check that the storage answers and that its "
            "credentials are right, then try again"
        ) from error
