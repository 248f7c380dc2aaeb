"""CPU beside seconds: of a server's JVM, and of whatever else the machine did meanwhile."""

from __future__ import annotations

import os
from dataclasses import dataclass

import psutil


@dataclass(frozen=True)
class Cpu:
    """Seconds of CPU: of the server's process, and of the ``neighbours``: processes that are not of this run."""

    server: float = 0.0
    neighbours: float = 0.0

    @classmethod
    def until_now(cls, server: int) -> Cpu:
        """What they have had so far; ``server`` is the number of a process."""
        own = {os.getpid(), *(child.pid for child in psutil.Process().children(recursive=True))}
        others = sum(_seconds(process) for process in psutil.process_iter() if process.pid not in own)
        return cls(_seconds(psutil.Process(server)), others)

    def __sub__(self, other: Cpu) -> Cpu:
        # a neighbour that ends takes what it had along
        return Cpu(self.server - other.server, max(0.0, self.neighbours - other.neighbours))


def _seconds(process: psutil.Process) -> float:
    try:
        times = process.cpu_times()
    except psutil.NoSuchProcess:
        return 0.0
    return float(times.user + times.system)
