"""What a process keeps of far storage while it works with it: threads that wait, and documents that it has seen.

Airflow forks. A fork has none of its parent's threads, and copies of its connections and locks that are not its own.
"""

from __future__ import annotations

import os
import re
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from threading import Lock
from typing import TypeVar

_Item = TypeVar("_Item")
_Found = TypeVar("_Found")

#: The UUID in the name of a document, for which nobody writes a second one of that name.
_ONCE = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}[^/]*$")


class AtOnce:
    """Threads for work that mostly waits: at most ``width``, which stay for the next call. No work may call for more.

    >>> AtOnce(8)(str, [1, 2])
    ['1', '2']
    """

    def __init__(self, width: int) -> None:
        self._width = width
        #: and the process that they are in
        self._threads: tuple[ThreadPoolExecutor, int] | None = None

    def __call__(self, work: Callable[[_Item], _Found], items: Sequence[_Item]) -> list[_Found]:
        """Return what ``work`` makes of each item, in their order.

        Raises the first error, after all work that had begun has ended.
        """
        if len(items) < 2:
            return [work(item) for item in items]
        if self._threads is None or self._threads[1] != os.getpid():
            self._threads = ThreadPoolExecutor(self._width), os.getpid()
        threads, _ = self._threads
        begun = [threads.submit(work, item) for item in items]
        try:
            return [each.result() for each in begun]
        finally:
            for each in begun:
                each.cancel()
            wait(begun)

    def close(self) -> None:
        """Let the threads end."""
        if self._threads is not None:
            self._threads[0].shutdown(wait=False)
            self._threads = None


class Kept:
    """Documents by their locations, as they are in the storage: at most ``most`` bytes, those used last.

    They are kept as bytes, so that whoever changes a document changes one of its own.
    """

    def __init__(self, most: int) -> None:
        self._most, self._size = most, 0
        self._documents: OrderedDict[str, bytes] = OrderedDict()
        self._lock = Lock()

    def get(self, location: str) -> bytes | None:
        with self._lock:
            if location in self._documents:
                self._documents.move_to_end(location)
            return self._documents.get(location)

    def keep(self, location: str, data: bytes) -> None:
        """Keep it, unless there may be another document at the same location one day."""
        if _ONCE.search(location) is None:  # safety: kept-is-of-its-location
            return
        with self._lock:
            self._size += len(data) - len(self._documents.pop(location, b""))
            self._documents[location] = data
            while self._size > self._most:
                self._size -= len(self._documents.popitem(last=False)[1])

    def forget(self, location: str) -> None:
        with self._lock:
            self._size -= len(self._documents.pop(location, b""))
