"""Starting warm parents, which fork the processes that die: a test runner has threads, and cannot fork."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

_ROOT = Path(__file__).parents[2]


@contextmanager
def in_memory(otherwise: Path) -> Iterator[str]:
    """A folder in memory where there is such a place: a power loss is not what is tested."""
    memory = Path("/dev/shm")
    if not os.access(memory, os.W_OK):
        yield str(otherwise)
        return
    made = tempfile.mkdtemp(prefix="airflow-barrier-crash-", dir=memory)
    try:
        yield made
    finally:
        shutil.rmtree(made)


def play(module: str, orders: Sequence[tuple[str, str]]) -> list[dict[str, Any]]:
    """What `main` of ``module`` says, as JSON lines, in a process for each of ``orders``, side by side: a folder of its
    own, and what it reads.
    """
    code = f"import sys; sys.path.append({str(_ROOT)!r}); from {module} import main; main()"
    processes = []
    try:
        for folder, text in orders:
            with open(_said(folder), "wb") as said, open(_said(folder, "errors"), "wb") as errors:
                process = subprocess.Popen(
                    [sys.executable, "-W", "error", "-c", code],
                    stdin=subprocess.PIPE,
                    stdout=said,
                    stderr=errors,
                    cwd=_ROOT / "tests",  # where `airflow_barrier` is the installed one
                    start_new_session=True,
                )
            processes.append(process)
            assert process.stdin is not None
            process.stdin.write(text.encode())
            process.stdin.close()
        for process, (folder, _) in zip(processes, orders, strict=True):
            assert process.wait() == 0, _said(folder, "errors").read_text()[-8000:]
    finally:
        for process in processes:
            # with all of its children, among them suspended ones; none is left if all went well
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    return [json.loads(line) for folder, _ in orders for line in _said(folder).read_text().splitlines()]


def _said(folder: str, kind: str = "said") -> Path:
    return Path(f"{folder}.{kind}")
