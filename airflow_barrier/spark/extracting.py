"""Extracts that are written by an application of their own: what the task orders, and what the driver answers.

The order lies beside the warehouse, and Spark's conf carries its URI and digest only, as with an epoch spec. The driver
leaves an answer, which bears the order's nonce: where the files are, or the error that the task is to raise.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from airflow_barrier.protocol import errors
from airflow_barrier.protocol.codec import decode, encode
from airflow_barrier.protocol.errors import BarrierError
from airflow_barrier.spark._submitted import read_told, submitted, write_file
from airflow_barrier.spark.delivering import Extract, write_extracts
from airflow_barrier.spark.spec import SPEC_DIGEST, SPEC_URI, damaged, proven, sealed, signed, unsealed

#: What spark-submit runs.
EXTRACT_APPLICATION = str(Path(__file__).parent / "applications" / "extract.py")
_WHAT = "order of extracts"


@dataclass(frozen=True)
class Order:
    """Extracts to be written into ``folder``, each into a folder of its own. ``catalog``: its name in Spark."""

    catalog: str
    extracts: tuple[Extract, ...]
    folder: str
    nonce: str = field(repr=False)

    @property
    def uri(self) -> str:
        """The file that the order is written into."""
        return f"{self.folder}/order.json"

    @property
    def answer_uri(self) -> str:
        return f"{self.folder}/answer.json"

    def dumps(self) -> str:
        return sealed(encode(self))

    @classmethod
    def loads(cls, text: str, digest: str) -> Order:
        """Raises SpecError if it is not the very same text."""
        return decode(cls, unsealed(text, digest, _WHAT))

    def files(self, answer: str) -> list[list[str]]:
        """Return where the driver says that it has written each of the extracts.

        Raises the error that it has met, in its words, and UnprovenFileError if it is not the driver who says so.
        """
        where = f"answer {self.answer_uri}"
        said = proven(answer, self.nonce, where)
        if "error" in said:
            raise _error(said["error"], said.get("message"), where)  # safety: driver-error-is-the-tasks
        files = said.get("files")
        if not (isinstance(files, list) and len(files) == len(self.extracts) and all(map(_are_uris, files))):
            raise damaged(where, f"the files of {len(self.extracts)} extracts, or an error")
        return files


def _error(name: Any, message: Any, where: str) -> BarrierError:
    kind = getattr(errors, str(name), None)
    if isinstance(kind, type) and issubclass(kind, BarrierError):
        return kind(str(message))
    return damaged(where, "an error of this package")


def _are_uris(files: Any) -> bool:
    return isinstance(files, list) and all(isinstance(uri, str) for uri in files)


def run_ordered() -> None:
    """The driver's side: write the extracts that the order has which the conf names, and leave the answer."""
    with submitted("The extract") as spark:
        uri, digest = str(spark.conf.get(SPEC_URI)), str(spark.conf.get(SPEC_DIGEST))
        order = Order.loads(read_told(spark, uri, _WHAT), digest)
        answer: dict[str, Any]
        try:
            answer = {"files": write_extracts(spark, order.catalog, order.extracts, order.folder)}
        except BarrierError as error:
            answer = {"error": type(error).__name__, "message": str(error)}
        write_file(spark, order.answer_uri, signed(answer, order.nonce))
