"""The jars of servers that run on this machine, from Maven."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from fcntl import LOCK_EX, flock
from pathlib import Path

from tenacity import Retrying, stop_after_attempt, wait_exponential

#: Seconds that resolving may take: the first time the jars are downloaded.
_PATIENCE = 600


@contextmanager
def downloading(folder: Path) -> Iterator[Retrying]:
    """One process after another fills ``folder``, and tries again what the network has broken off."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("w") as lock:
        flock(lock, LOCK_EX)
        yield Retrying(stop=stop_after_attempt(4), wait=wait_exponential(multiplier=2), reraise=True)


def resolved(modules: Path, folder: Path) -> list[Path]:
    """The jars that an Ivy file names, with what they need: resolved once, by the Ivy that Spark brings.

    They are put into a folder of ``folder`` that is called as the Ivy file. Raises RuntimeError with what Ivy said.
    """
    import pyspark

    from airflow_barrier.project.java import find_java

    own = folder / modules.name.partition(".")[0]
    ivy = ":".join(str(jar) for jar in (Path(pyspark.__file__).parent / "jars").glob("ivy-*.jar"))
    with downloading(folder) as patiently:
        if not (own / "resolved").exists():
            patiently(_resolve, [find_java(), "-cp", ivy, "org.apache.ivy.Main"], modules, own)
    return [*own.glob("*.[jn]ar")]  # .nar: a jar with native code, as BookKeeper has


def _resolve(ivy: list[str], modules: Path, folder: Path) -> None:
    pattern = f"{folder}/[artifact]-[revision](-[classifier]).[ext]"
    command = [*ivy, "-ivy", str(modules), "-cache", str(folder.parent / "ivy"), "-retrieve", pattern]
    done = subprocess.run(command, capture_output=True, text=True, timeout=_PATIENCE, check=False)
    if done.returncode != 0 or "UNRESOLVED" in done.stdout:
        raise RuntimeError(f"the jars of {modules.name} cannot be resolved:\n{done.stdout[-3000:]}{done.stderr}")
    (folder / "resolved").touch()
