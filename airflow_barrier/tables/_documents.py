"""Files of the warehouse: metadata documents, empty manifest lists, and small text files beside the tables."""

from __future__ import annotations

import gzip
import logging
import os
import re
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path, PurePosixPath
from threading import Lock
from typing import TYPE_CHECKING, Any, BinaryIO, TypeVar
from urllib.parse import urlparse

import msgspec

from airflow_barrier.protocol.errors import CatalogUnavailableError, ConfigurationError
from airflow_barrier.tables._here import AtOnce, Kept
from airflow_barrier.tables._local_files import LocalFiles, is_local, local_path
from airflow_barrier.tables._metadata import Document, Snapshot

if TYPE_CHECKING:
    from pyarrow.fs import FileSystem
    from pyiceberg.io import FileIO

_GZIP = ".gz.metadata.json"
_PLAIN = ".metadata.json"
_LOCAL = LocalFiles()
_VERSION = re.compile(r"^v?(\d+)")
#: How often a folder is made anew that goes again before a file is in it.
_TRIES = 100

#: Requests at once to what is far: no more than pyarrow keeps connections for, which is 25.
_AT_ONCE = 24
#: Of documents that are kept: those of some hundred tables, of some hundred snapshots each.
_KEPT_BYTES = 64 * 2**20
#: pyarrow's options: no upload in parts is begun before it is known to take any, and none waits for a thread of
#: pyarrow's own, of which there are eight.
_SMALL_OBJECTS = {"allow_delayed_open": True, "background_writes": False}
#: pyiceberg's property for what a copy of a file system would lose.
_RETRIES = "s3.retry-strategy-impl"

_Found = TypeVar("_Found")

log = logging.getLogger(__name__)


class _Here:
    """Here, in this process: its ways to the storage, and what it keeps of it."""

    def __init__(self) -> None:
        self.process = os.getpid()
        self.by_scheme: dict[str, FileIO] = {}
        self.making = Lock()
        self.at_once = AtOnce(_AT_ONCE)
        self.kept = Kept(_KEPT_BYTES)


class Documents:
    """Reads and writes files by URI, with whatever storage the warehouse lies on.

    ``properties`` are those of a pyiceberg catalog (`s3.endpoint` and the like). A file that is not there raises
    FileNotFoundError; storage that does not answer raises CatalogUnavailableError.
    """

    def __init__(self, properties: Mapping[str, str]) -> None:
        self.properties = dict(properties)
        self._of_process = _Here()

    @property
    def _here(self) -> _Here:
        if self._of_process.process != os.getpid():  # in a fork
            self._of_process = _Here()
        return self._of_process

    def close(self) -> None:
        """Let the threads end; whoever goes on gets new ones."""
        self._here.at_once.close()

    def io(self, uri: str) -> FileIO:
        scheme, here = urlparse(uri).scheme, self._here
        with here.making:
            if scheme not in here.by_scheme:
                from pyiceberg.io import load_file_io

                here.by_scheme[scheme] = _in_one_request(load_file_io(self.properties, uri))
            return here.by_scheme[scheme]

    def _files(self, uri: str) -> LocalFiles | FileIO:
        return _LOCAL if is_local(uri, self.properties) else self.io(uri)

    def of_each(self, work: Callable[[str, str], _Found], locations: Mapping[str, str]) -> dict[str, _Found]:
        """Return what ``work`` makes of each table and the location of its document; many at once, unless all are
        local. Raises as :class:`~airflow_barrier.tables._here.AtOnce` does.
        """
        if all(is_local(location, self.properties) for location in locations.values()):
            return {table: work(table, location) for table, location in locations.items()}
        found = self._here.at_once(lambda each: work(*each), list(locations.items()))
        return dict(zip(locations, found, strict=True))

    def read(self, location: str) -> Document:
        """The document there; it may be kept from before, even if it is gone meanwhile."""
        data = self._here.kept.get(location)
        if data is None:
            data = self.read_bytes(location)
            self._keep(location, data)
        document: Document = msgspec.json.decode(gzip.decompress(data) if location.endswith(_GZIP) else data)
        return document

    # msgspec: documents grow with the snapshots that a table keeps, and Python's own json is several times slower
    def write(self, document: Document, previous: str) -> str:
        """Write the document that follows the one at ``previous``, beside it. Returns its location."""
        folder, _, name = previous.rpartition("/")
        version = _VERSION.match(name)
        following = int(version[1]) + 1 if version else 0
        location = f"{folder}/{following:05d}-{uuid.uuid4()}{_GZIP if name.endswith(_GZIP) else _PLAIN}"
        encoded = msgspec.json.encode(document)
        data = gzip.compress(encoded) if location.endswith(_GZIP) else encoded
        self.write_bytes(location, data)
        self._keep(location, data)
        return location

    def _keep(self, location: str, data: bytes) -> None:
        if not is_local(location, self.properties):
            self._here.kept.keep(location, data)

    def forget(self, location: str) -> None:
        """Let the next look see whether the document is there."""
        self._here.kept.forget(location)

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
            self.forget(location)
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

    @contextmanager
    def created(self, uri: str) -> Iterator[Any]:
        """A new file, to be written piece by piece. Once the block has ended without an error it is there, and durable.

        After an error an object store may have a part of it.
        """
        with _storage(uri):
            if is_local(uri, self.properties):
                with _created_locally(local_path(uri)) as stream:
                    yield stream
                return
            with self.io(uri).new_output(uri).create(overwrite=True) as stream:
                yield stream

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


def _in_one_request(io: FileIO) -> FileIO:
    """Let pyarrow write a small object to S3 by one PUT, where it would begin an upload in parts, of three requests.

    pyiceberg has no property for that. A copy of a file system is what pyarrow sends to another process.
    """
    from pyiceberg.io.pyarrow import PyArrowFileIO

    if not isinstance(io, PyArrowFileIO) or _RETRIES in io.properties:
        return io
    opened, lock, ours = io.fs_by_scheme, Lock(), {}

    def file_system(scheme: str, netloc: str | None) -> FileSystem:
        with lock:
            if (scheme, netloc) not in ours:
                found = opened(scheme, netloc)
                if found.type_name == "s3":
                    copy, (options,) = found.__reduce__()
                    found = copy({**options, **_SMALL_OBJECTS})
                ours[scheme, netloc] = found
            return ours[scheme, netloc]

    io.fs_by_scheme = file_system
    return io


def _replace_local(uri: str, data: bytes) -> None:
    path = local_path(uri)
    with _part_of(path) as part:
        _in_folder(part, lambda part: part.write_bytes(data))
        part.replace(path)


@contextmanager
def _created_locally(path: Path) -> Iterator[BinaryIO]:
    with _part_of(path) as part:
        with _in_folder(part, lambda part: part.open("xb")) as stream:
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
        part.replace(path)
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


@contextmanager
def _part_of(path: Path) -> Iterator[Path]:
    """A name beside the file, of a part that goes after an error."""
    # Not named after the file, whose name may have the longest length that there is.
    part = path.with_name(f".{uuid.uuid4()}.part")
    try:
        yield part
    except BaseException:
        part.unlink(missing_ok=True)
        raise


def _in_folder(path: Path, write: Callable[[Path], _Found]) -> _Found:
    """Write the file once its folder is made; also while another process deletes it, or one above it, since it was
    empty.
    """
    for left in reversed(range(_TRIES)):
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            return write(path)
        except (FileNotFoundError, FileExistsError):  # it is made and gone between two calls, or it is there and gone
            if not left:
                raise
    raise AssertionError("unreachable: the last try raises")


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
