"""What a Spark driver imports of this package, as one file that travels with the job.

``python -m airflow_barrier.spark.driver_zip /opt/spark/python`` builds it for an image or a shared folder.
"""

from __future__ import annotations

import base64
import hashlib
import sys
import zipfile
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

import airflow_barrier

#: What a driver imports: these know neither Airflow nor a database, nor anything that is not Python's own or Spark's.
ROOMS = ("protocol", "systems", "sources", "spark")
_NAME = "airflow_barrier_driver"
_PYTHON = ">=3.10"
# A zip knows when its files were written; ours say the same of the same content.
_LONG_AGO = (1980, 1, 1, 0, 0, 0)


def driver_zip(folder: Path) -> Path:
    """Write the file into ``folder``, which is there, and return its path; the same package gives the same bytes.

    It is a wheel inside, but is named ``.zip``: Spark's executors put no ``.whl`` from ``--py-files`` on their path.
    A driver that has it needs no installation of ours, and one that has another version runs with this one.

    >>> driver_zip(Path("/tmp")).name  # doctest: +SKIP
    'airflow_barrier_driver-0.1.0.zip'
    """
    number = version("airflow-provider-barrier")
    path = folder / f"{_NAME}-{number}.zip"
    about = f"{_NAME}-{number}.dist-info"
    files = dict(_modules())
    files[f"{about}/METADATA"] = (
        f"Metadata-Version: 2.1\nName: {_NAME.replace('_', '-')}\nVersion: {number}\nRequires-Python: {_PYTHON}\n"
    ).encode()
    files[f"{about}/WHEEL"] = b"Wheel-Version: 1.0\nGenerator: airflow_barrier\nRoot-Is-Purelib: true\n" + (
        b"Tag: py3-none-any\n"
    )
    listed = [f"{name},sha256={_digest(content)},{len(content)}" for name, content in files.items()]
    files[f"{about}/RECORD"] = "\n".join([*listed, f"{about}/RECORD,,", ""]).encode()
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(zipfile.ZipInfo(name, _LONG_AGO), content, zipfile.ZIP_DEFLATED)
    return path


def _modules() -> Iterator[tuple[str, bytes]]:
    package = Path(airflow_barrier.__file__).parent
    for file in [package / "__init__.py", *(file for room in ROOMS for file in sorted((package / room).rglob("*.py")))]:
        yield f"{package.name}/{file.relative_to(package).as_posix()}", file.read_bytes()


def _digest(content: bytes) -> str:
    """Return the digest as wheels write it."""
    return base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()


if __name__ == "__main__":
    sys.stdout.write(f"{driver_zip(Path(*sys.argv[1:]))}\n")
