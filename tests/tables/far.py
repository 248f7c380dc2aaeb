"""Storage that is far: each request waits for its answer, and this one gets it once another one is made beside it."""

from __future__ import annotations

from threading import Barrier
from typing import ClassVar

from pyiceberg.io import InputFile, OutputFile
from pyiceberg.io.pyarrow import PyArrowFileIO


class Far(PyArrowFileIO):
    #: None: it answers at once
    meeting: ClassVar[Barrier | None] = None

    def new_input(self, location: str) -> InputFile:
        self._meet()
        return super().new_input(location)

    def delete(self, location: str | InputFile | OutputFile) -> None:
        self._meet()
        super().delete(location)

    def _meet(self) -> None:
        if self.meeting is not None:
            self.meeting.wait()
