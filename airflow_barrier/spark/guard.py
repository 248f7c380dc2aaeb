"""The guard: a jar that lets a Spark driver touch no table that its job does not declare (source: `guard/`).

``python -m airflow_barrier.spark.guard`` prints where it lies, for putting it on a cluster or into an image.
"""

from __future__ import annotations

from pathlib import Path

from airflow_barrier.protocol.errors import ConfigurationError

_JAR = Path(__file__).parent / "jars" / "airflow-barrier-guard.jar"


def guard_jar() -> str:
    """The jar's path. Raises ConfigurationError in a checkout where it has not been built."""
    if not _JAR.is_file():
        raise ConfigurationError(
            f"expected the guard at {_JAR}, found nothing; it is part of the wheel of airflow-provider-barrier: "
            "install that, or run scripts/guard.sh in a checkout"
        )
    return str(_JAR)


if __name__ == "__main__":
    print(guard_jar())
