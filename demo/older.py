"""`make demo OLDER=1`: the oldest Airflow and Spark that are supported, on tables in a Hive Metastore.

Airflow is that of an environment of its own, jobs and deliveries are drivers of its Spark, which tasks submit. Tables
are made, and FLIP-276's example is run, by a Spark Connect server of the Spark that the demo has otherwise.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from airflow_barrier.coordinator.spark_conf import EXTENSIONS, properties_of, spark_conf
from airflow_barrier.project.local import SMALL_DATA
from airflow_barrier.systems.spark_versions import SPARK_VERSIONS
from demo.local_hive import hive_metastore
from demo.local_spark import LocalSparkError
from demo.places import CATALOG_URI, CHECKOUT, Places

if TYPE_CHECKING:
    from airflow_barrier.coordinator.settings import Settings

#: As `scripts/venv_of.sh` makes it.
_ENVIRONMENT = CHECKOUT / ".venv-airflow-3.1-spark-3.5" / "bin"
_SPARK = SPARK_VERSIONS["3.5"]
#: A driver's, beside the catalog.
_DRIVER = {
    "spark.master": "local[1]",
    "spark.driver.memory": "1g",
    "spark.ui.enabled": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}
#: Seconds until a driver has downloaded its jars, the first time.
_PATIENCE = 300.0


@dataclass(frozen=True)
class Older:
    """``python`` has the Airflow; ``environment`` is for all that runs there."""

    python: str
    environment: Mapping[str, str]

    def download(self) -> None:
        """Start one driver alone, so that those of tasks, several at once, find their jars. Raises LocalSparkError."""
        script = "from pyspark.sql import SparkSession; print(SparkSession.builder.getOrCreate().version)"
        done = subprocess.run(
            [self.python, "-c", script],
            env={**os.environ, **self.environment},
            cwd=self.environment["SPARK_CONF_DIR"],  # Spark leaves folders in its working directory
            capture_output=True,
            text=True,
            timeout=_PATIENCE,
            check=False,
        )
        version = done.stdout.split()[-1] if done.returncode == 0 else ""  # Ivy prints before it
        if not version.startswith(_SPARK.number):
            raise LocalSparkError(f"Spark {_SPARK.number} does not start:\n{done.stdout}{done.stderr[-3000:]}")


@contextmanager
def older(places: Places) -> Iterator[Older]:
    """The metastore runs as long as the block lasts, and is what all processes of the demo have as catalog."""
    with hive_metastore(places.run / "hive", places.warehouse.as_uri()) as hive:
        os.environ[CATALOG_URI] = hive.uri
        conf = places.run / "spark-3.5"
        conf.mkdir()
        (conf / "spark-defaults.conf").write_text(properties_of(_conf(places.settings(), places.ivy, conf)))
        yield Older(
            str(_ENVIRONMENT / "python"),
            {
                "PATH": f"{_ENVIRONMENT}{os.pathsep}{os.environ['PATH']}",
                "SPARK_CONF_DIR": str(conf),
                "PYSPARK_PYTHON": str(_ENVIRONMENT / "python"),
                "AIRFLOW_CONN_SPARK_DEFAULT": json.dumps({"conn_type": "spark", "host": "local[1]"}),
                "SHOPPING_VIA": "submit",
            },
        )


def _conf(settings: Settings, ivy: Path, folder: Path) -> dict[str, str]:
    """The guard is not in it: operators bring it along."""
    return {
        **spark_conf(settings, spark=_SPARK).conf,
        "spark.sql.extensions": EXTENSIONS,
        "spark.jars.ivy": str(ivy),
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        **SMALL_DATA,
        **_DRIVER,
    }
