"""A table with a history of snapshots, and what its changes must come to: counted row by row, in plain Python."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping
from itertools import count
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from airflow_barrier.protocol.changes import CHANGE_TYPE, WEIGHT
from airflow_barrier.protocol.snapshots import TableDelta, stretches
from airflow_barrier.spark._iceberg import IcebergTable
from airflow_barrier.spark._touched import _asked
from airflow_barrier.spark.changes import changes
from airflow_barrier.spark.identifiers import quoted
from airflow_barrier.tables._documents import Documents
from airflow_barrier.tables._manifests import table_delta

CATALOG = "lake"
COLUMNS = "id BIGINT, v INT, s STRING"
COW = "copy-on-write"
MOR = "merge-on-read"
MERGE = """
    MERGE INTO {t} t USING (SELECT id + 8 AS id, 100 AS v FROM range(6)) d ON t.id = d.id
    WHEN MATCHED AND t.id % 2 = 0 THEN DELETE WHEN MATCHED THEN UPDATE SET v = d.v
    WHEN NOT MATCHED THEN INSERT (id, v, s) VALUES (d.id, d.v, 'new')"""
REWRITE_ALL = ", options => map('rewrite-all', 'true')"
_numbers = count(1)


def modes(mode: str) -> dict[str, str]:
    """The table properties by which rows are updated and deleted."""
    return {f"write.{verb}.mode": mode for verb in ("delete", "update", "merge")}


def insert(start: int, end: int) -> str:
    """One file of rows with these ids, for a table of :data:`COLUMNS`."""
    rows = f"SELECT id, CAST(id % 5 AS INT), concat('s', id % 3) FROM range({start}, {end}, 1, 1)"
    return f"INSERT INTO {{t}} (id, v, s) {rows}"


class History:
    """A new table ``name``. ``heads`` are the snapshots that :meth:`do` left on ``main``, oldest first."""

    def __init__(self, spark: SparkSession, namespace: str, columns: str, clause: str = "", **properties: str) -> None:
        self.spark = spark
        self.name = quoted(CATALOG, namespace, f"t{next(_numbers)}_{os.getpid()}")
        self.namespace = namespace
        spark.sql(f"CREATE NAMESPACE IF NOT EXISTS {quoted(CATALOG, namespace)}")
        settings = {"format-version": "2"} | {key.replace("_", "-"): value for key, value in properties.items()}
        listed = ", ".join(f"'{key}' = '{value}'" for key, value in settings.items())
        spark.sql(f"CREATE TABLE {self.name} ({columns}) USING iceberg {clause} TBLPROPERTIES ({listed})")
        self.heads: list[int] = []
        self._rows: dict[int, list[dict[str, Any]]] = {}

    def do(self, *statements: str) -> int:
        """Run SQL with ``{t}`` for the table; the snapshot that ``main`` is at afterwards."""
        for statement in statements:
            self.spark.sql(statement.replace("{t}", self.name))
        self.heads.append(self.main())
        return self.heads[-1]

    def main(self) -> int:
        return int(self.spark.sql(f"SELECT snapshot_id FROM {self.name}.refs WHERE name = 'main'").collect()[0][0])

    def call(self, procedure: str, arguments: str = "") -> int:
        """Run one of Iceberg's procedures on the table."""
        table = self.name.replace("`", "").removeprefix(f"{CATALOG}.")
        return self.do(f"CALL {CATALOG}.system.{procedure}(table => '{table}'{arguments})")

    def rows(self, snapshot: int) -> list[dict[str, Any]]:
        if snapshot not in self._rows:
            frame = self.spark.sql(f"SELECT * FROM {self.name} VERSION AS OF {snapshot}")
            self._rows[snapshot] = [row.asDict(recursive=True) for row in frame.collect()]
        return self._rows[snapshot]

    def operations(self) -> list[str]:
        listed = self.spark.sql(f"SELECT operation FROM {self.name}.snapshots ORDER BY committed_at")
        return [row[0] for row in listed.collect()]

    def files(self, snapshot: int) -> set[str]:
        """Paths of the data files at ``snapshot``."""
        listed = self.spark.sql(f"SELECT file_path FROM {self.name}.files VERSION AS OF {snapshot} WHERE content = 0")
        return {row[0] for row in listed.collect()}

    def changes(self, start: int | None, end: int | None) -> DataFrame:
        return changes(self.spark, self.name, start, end)

    def told(self, start: int, end: int) -> TableDelta | None:
        """What the worker tells of the changes by the table's metadata alone."""
        location = self.spark.sql(f"SELECT file FROM {self.name}.metadata_log_entries").collect()[-1][0]
        documents = Documents({})
        return table_delta(self.name, documents.read(location), start, end, documents)

    def check_told(self, start: int, end: int) -> bool:
        """Whether the worker tells the changes; if so, they are those that Spark's queries tell: files, and rows."""
        told = self.told(start, end)
        if told is None:
            return False
        asked = IcebergTable(self.spark, self.name)
        since, until = asked.snapshot(start), asked.snapshot(end)
        for stretch in stretches(asked.chain(since, until), since, until):
            found, expected = IcebergTable(self.spark, self.name, told).told(stretch), _asked(asked, stretch)
            assert found is not None
            assert set(found.moved) == set(expected.moved)
            assert set(found.kept) == set(expected.kept)
            assert expected.added_have_deletes >= found.added_have_deletes
        rows = [changes(self.spark, self.name, start, end, delta) for delta in (told, None)]
        assert rows[0].columns == rows[1].columns
        counts = [Counter(canonical(row.asDict(recursive=True), row.__fields__) for row in f.collect()) for f in rows]
        assert counts[0] == counts[1]
        return True

    def check(self, start: int | None, end: int, renamed: Mapping[str, str] | None = None) -> DataFrame:
        """Changes from ``start`` to ``end``, which turn the one state into the other and have no row both ways."""
        frame = self.changes(start, end)
        columns = self.spark.sql(f"SELECT * FROM {self.name} VERSION AS OF {end}").columns
        assert frame.columns == [*columns, CHANGE_TYPE, WEIGHT]
        delta: Counter[str] = Counter()
        types: dict[str, set[str]] = {}
        for row in frame.collect():
            values = row.asDict(recursive=True)
            change_type, weight = values.pop(CHANGE_TYPE), values.pop(WEIGHT)
            assert (change_type, weight) in {("insert", 1), ("delete", -1)}
            delta[canonical(values, columns)] += weight
            types.setdefault(canonical(values, columns), set()).add(change_type)
        assert all(len(kinds) == 1 for kinds in types.values()), "a row is both inserted and deleted"
        state: Counter[str] = Counter()
        if start is not None:
            old = [{(renamed or {}).get(name, name): value for name, value in row.items()} for row in self.rows(start)]
            state.update(canonical(row, columns) for row in old)
        state.update(delta)
        state.subtract(canonical(row, columns) for row in self.rows(end))
        wrong = {row: n for row, n in state.items() if n}
        assert not wrong, f"from {start} to {end}, rows too many (or, below 0, too few): {wrong}"
        return frame


def canonical(row: Mapping[str, Any], columns: list[str]) -> str:
    """One text per row, whatever order its maps are in; a column that the row does not have is NULL."""

    def fixed(value: Any) -> Any:
        if isinstance(value, dict):
            return sorted(((repr(fixed(key)), fixed(item)) for key, item in value.items()), key=repr)
        if isinstance(value, list):
            return [fixed(item) for item in value]
        return value

    return repr([fixed(row.get(name)) for name in columns])


def read_files(frame: DataFrame) -> set[str]:
    """Names of the data files that a plan reads by path."""
    return {path.rpartition("/")[2] for path in frame.inputFiles()}


def names(paths: set[str]) -> set[str]:
    return {path.rpartition("/")[2] for path in paths}
