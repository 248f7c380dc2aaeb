"""Which Java a Spark on this machine runs on."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

from airflow_barrier.protocol.errors import ConfigurationError

_OLDEST_JAVA = 17


def find_java() -> str:
    """Path of a Java that Spark 4 runs on. Raises ConfigurationError with one sentence if there is none."""
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    remedy = f"install a Java {_OLDEST_JAVA} runtime or newer and put it on PATH, or point JAVA_HOME to it"
    if java is None or not Path(java).exists():
        raise ConfigurationError(
            f"Spark needs Java {_OLDEST_JAVA} or newer, and {java or 'java'} was not found: {remedy}."
        )
    said = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=60, check=False).stderr
    version = re.search(r'version "(?:1\.)?(\d+)', said)
    if version is None or int(version.group(1)) < _OLDEST_JAVA:
        found = version.group(1) if version else "something that does not tell its version"
        raise ConfigurationError(f"Spark needs Java {_OLDEST_JAVA} or newer, and {java} is {found}: {remedy}.")
    return java
