"""File systems as a sink of files needs them: one rename that moves a whole folder, and never replaces another.

Paths are relative to the sink's folder. Methods raise SinkUnavailableError when the file system does not answer,
SinkRefusedError where its rights do not suffice, and FileNotFoundError as said.
"""

from __future__ import annotations

import errno
import io
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import partial
from typing import Any, BinaryIO, Protocol

from airflow_barrier.protocol.credentials import Credentials
from airflow_barrier.protocol.errors import SinkRefusedError, SinkUnavailableError


class Store(Protocol):
    """A folder on a file system."""

    def names(self, folder: str) -> list[str] | None:
        """Return the names of what lies in a folder; None: there is none."""
        ...

    def exists(self, path: str) -> bool: ...

    def read(self, path: str) -> bytes:
        """Raises FileNotFoundError."""
        ...

    def create(self, path: str) -> AbstractContextManager[BinaryIO]:
        """A new file, to be written; it is durable once the block has ended. May raise FileNotFoundError if its folder
        is gone.
        """
        ...

    def missing(self, folder: str) -> list[str]:
        """Return the folders that :meth:`make` would make, the highest one last."""
        ...

    def make(self, folder: str) -> None:
        """Make it, and those above it, as far as they are not there."""
        ...

    def rename(self, folder: str, name: str) -> bool:
        """Move a folder that is not empty, in one step. False: something of that name is there, and nothing was
        changed. Raises FileNotFoundError if the folder, or the one that it would be moved into, is not there.
        """
        ...

    def remove(self, path: str) -> None:
        """Remove a folder with all that is in it. Nothing happens if it is not there."""
        ...

    def remove_empty(self, made: list[str]) -> None:
        """Take away folders that were :meth:`missing`, but for folders that others have put something into."""
        ...

    def close(self) -> None: ...


class LocalStore:
    """A disk, or what is mounted like one. Whatever has returned is on the disk, also after a loss of power."""

    def __init__(self, root: str) -> None:
        self._root = root

    def names(self, folder: str) -> list[str] | None:
        with self._asking(folder) as path, suppress(FileNotFoundError):
            return os.listdir(path)
        return None

    def exists(self, path: str) -> bool:
        with self._asking(path) as full:
            return os.path.lexists(full)

    def read(self, path: str) -> bytes:
        with self._asking(path) as full, open(full, "rb") as file:
            return file.read()

    @contextmanager
    def create(self, path: str) -> Iterator[BinaryIO]:
        with self._asking(path) as full:
            file = open(full, "xb")  # noqa: SIM115
        with file:
            yield _Telling(file, full)  # type: ignore[misc]  # a raw stream, which pyarrow takes as well
            with _told(full):
                file.flush()
                os.fsync(file.fileno())
                _sync(os.path.dirname(full))

    def missing(self, folder: str) -> list[str]:
        found: list[str] = []
        with self._asking(folder) as full:
            while not os.path.isdir(full):
                found.append(full)
                full = os.path.dirname(full)
        return found

    def make(self, folder: str) -> None:
        missing = self.missing(folder)
        with self._asking(folder):
            for each in reversed(missing):
                with suppress(FileExistsError):  # another process was faster
                    os.mkdir(each)
                _sync(os.path.dirname(each))

    def rename(self, folder: str, name: str) -> bool:
        with self._asking(folder) as before, self._asking(name) as after:
            try:
                os.rename(before, after)
            except OSError as error:
                if error.errno in (errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR):
                    return False
                raise
            _sync(os.path.dirname(after))
            _sync(os.path.dirname(before))
        return True

    def remove(self, path: str) -> None:
        with self._asking(path) as full, suppress(FileNotFoundError):
            shutil.rmtree(full)

    def remove_empty(self, made: list[str]) -> None:
        with suppress(OSError):
            for full in made:
                os.rmdir(full)

    def close(self) -> None:
        """Nothing is open."""

    @contextmanager
    def _asking(self, path: str) -> Iterator[str]:
        full = f"{self._root.rstrip('/')}/{path}".rstrip("/")
        with _told(full):
            yield full


class _Telling(io.RawIOBase):
    """A file being written, whose errors are those of a sink."""

    def __init__(self, file: BinaryIO, path: str) -> None:
        super().__init__()
        self._file, self._path = file, path

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        with _told(self._path):
            return self._file.write(data)

    def tell(self) -> int:
        return self._file.tell()


def _sync(folder: str) -> None:
    """A rename is on the disk only once its folder is."""
    with suppress(FileNotFoundError, PermissionError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


class HdfsStore:
    """HDFS by its own HTTP interface, so that a worker needs neither Java nor a native library."""

    def __init__(self, root: str, credentials: Credentials) -> None:
        from fsspec.implementations.webhdfs import WebHDFS

        self._root = root
        self._fs: Any = WebHDFS(
            credentials.host,
            port=credentials.port or 9870,
            user=credentials.login,
            skip_instance_cache=True,
        )
        # requests waits for ever, else
        self._fs.session.request = partial(self._fs.session.request, timeout=(10, 60))

    def names(self, folder: str) -> list[str] | None:
        with suppress(FileNotFoundError):
            answer = self._ask("LISTSTATUS", self._full(folder))
            return [status["pathSuffix"] for status in answer["FileStatuses"]["FileStatus"]]
        return None

    def exists(self, path: str) -> bool:
        return self._is_there(self._full(path))

    def read(self, path: str) -> bytes:
        full = self._full(path)
        with _told(full):
            return bytes(self._fs._call("OPEN", path=full).content)

    @contextmanager
    def create(self, path: str) -> Iterator[BinaryIO]:
        full = self._full(path)
        upload = _Upload(partial(self._send, full))
        yield upload  # type: ignore[misc]
        upload.finish()

    def missing(self, folder: str) -> list[str]:
        full = self._full(folder)
        found: list[str] = []
        while not self._is_there(full):
            found.append(full)
            full = full.rpartition("/")[0]
        return found

    def make(self, folder: str) -> None:
        self._ask("MKDIRS", self._full(folder), "put")

    def rename(self, folder: str, name: str) -> bool:
        # With this option a folder is never moved into one of that name; without it, HDFS does so, and says true.
        options = {"destination": self._full(name), "renameoptions": "NONE"}
        try:
            answer = self._ask("RENAME", self._full(folder), "put", **options)
        except (FileNotFoundError, SinkUnavailableError):
            if not self.exists(folder):
                raise FileNotFoundError(self._full(folder)) from None
            if self.exists(name):
                return False
            raise
        return bool(answer.get("boolean", True))

    def remove(self, path: str) -> None:
        self._ask("DELETE", self._full(path), "delete", recursive="true")

    def remove_empty(self, made: list[str]) -> None:
        with suppress(SinkUnavailableError):
            for full in made:
                self._ask("DELETE", full, "delete", recursive="false")

    def close(self) -> None:
        self._fs.session.close()

    def _is_there(self, full: str) -> bool:
        with suppress(FileNotFoundError):
            return bool(self._ask("GETFILESTATUS", full))
        return False

    def _ask(self, operation: str, full: str, method: str = "get", **options: str) -> dict[str, Any]:
        with _told(full):
            answer = self._fs._call(operation, method=method, path=full, **options)
            return dict(answer.json()) if answer.content else {}

    def _send(self, full: str, data: bytes, first: bool) -> None:
        operation, method = ("CREATE", "put") if first else ("APPEND", "post")
        with _told(full):
            node = self._fs._call(operation, method=method, path=full, redirect=False, **_CREATE[first])
            answer = self._fs.session.request(
                method.upper(),
                node.headers["Location"],
                data=data,
                headers={"content-type": "application/octet-stream"},
            )
            answer.raise_for_status()

    def _full(self, path: str) -> str:
        return f"{self._root.rstrip('/')}/{path}".rstrip("/")


_CREATE: dict[bool, dict[str, str]] = {True: {"overwrite": "false"}, False: {}}


class _Upload(io.RawIOBase):
    """An upload in pieces, of which one is in memory."""

    _PIECE = 16 * 1024**2

    def __init__(self, send: Callable[[bytes, bool], None]) -> None:
        super().__init__()
        self._send = send
        self._piece = bytearray()
        self._sent = 0
        self._began = False

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        self._piece += view
        if len(self._piece) >= self._PIECE:
            self._flush()
        return len(view)

    def tell(self) -> int:
        return self._sent + len(self._piece)

    def finish(self) -> None:
        if self._piece or not self._began:
            self._flush()
        self.close()

    def _flush(self) -> None:
        self._send(bytes(self._piece), not self._began)
        self._began, self._sent = True, self._sent + len(self._piece)
        self._piece.clear()


@contextmanager
def _told(path: str) -> Iterator[None]:
    """Errors of a file system as those of a sink, but for what is not there."""
    try:
        yield
    except FileNotFoundError:
        raise
    except PermissionError as error:
        raise SinkRefusedError(
            f"{path}: expected rights to read and write there, found {error}; have them granted to the user that the "
            "delivery runs as"
        ) from error
    except (OSError, RuntimeError, ValueError) as error:
        raise SinkUnavailableError(
            f"{path}: expected the file system to answer, found {type(error).__name__}: {error}; it is tried again; if "
            "it stays so, see whether it is up and has room"
        ) from error
