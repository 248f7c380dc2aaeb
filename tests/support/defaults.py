"""Columns that older files have by default, as other engines make them: Spark knows no statement for it."""

from __future__ import annotations

import json
from pathlib import Path
from urllib.parse import urlparse

from pyspark.sql import SparkSession


def give_default(spark: SparkSession, table: str, column: str, value: int | str) -> None:
    """Write the default of ``column`` into the newest metadata file of ``table``."""
    newest = spark.sql(f"SELECT file FROM {table}.metadata_log_entries").collect()[-1][0]
    file = Path(urlparse(newest).path)
    metadata = json.loads(file.read_text())
    for schema in metadata["schemas"]:
        for field in schema["fields"]:
            if field["name"] == column:
                field["initial-default"] = field["write-default"] = value
    file.write_text(json.dumps(metadata))
    (file.parent / f".{file.name}.crc").unlink(missing_ok=True)  # Hadoop's, of the file as it was
    spark.sql(f"REFRESH TABLE {table}")
