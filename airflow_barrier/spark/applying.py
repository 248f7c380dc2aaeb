"""Putting changes on a table by the key of its rows, in one MERGE."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from airflow_barrier.protocol.changes import CHANGE_TYPE, COLUMNS, SEQUENCE, TRUNCATE, UNSENT, WEIGHT
from airflow_barrier.protocol.ddl import literal
from airflow_barrier.protocol.errors import ConfigurationError
from airflow_barrier.spark.identifiers import quoted
from airflow_barrier.spark.views import view_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

log = logging.getLogger(__name__)

_REMEDY = (
    "have the database send whole rows, ALTER TABLE ... REPLICA IDENTITY FULL, and replace the epoch by a revision "
    "(--sql, --file)"
)

_ROW = "_row"
#: What is told of each change where a row may have several of them, as in a database's log. The difference of two
#: states, in which a row has one, does without.
_OF_A_LOG = (CHANGE_TYPE, SEQUENCE, UNSENT)


class _Facts(NamedTuple):
    """Facts about changes before they are applied: how many there are, and how many without their key's values.
    ``emptied_at``: the number of the last one that took all rows. ``are_whole``: each insertion has all of its values.
    """

    changes: int
    emptied_at: int | None
    are_whole: bool
    unsent_keys: int


def apply_changes(changes: DataFrame, table: str, target: str, key: Sequence[str]) -> bool:
    """Make the rows of ``target`` those that they are after ``changes``. Returns False if there are none.

    ``table``: its name in messages. Of the changes of one key the last one stands, by their number; of changes without
    numbers, which are the difference of two states, the insertion. Keys are compared so that a NULL finds itself.
    Raises ConfigurationError where the target has not the columns, or the changes not the key.
    """
    spark = changes.sparkSession
    columns = _columns(changes, spark.table(target).columns, table, key)
    facts = _facts(changes, key)
    if facts.changes == 0:
        return False
    if facts.unsent_keys:
        raise ConfigurationError(  # safety: applied-by-a-key-that-was-sent
            f"table {table}: expected changes with the values of its key ({', '.join(key)}), found {facts.unsent_keys} "
            "without: the database sends the key of the replica identity only, and an update that changes it does not "
            f"send large values which it leaves alone. Name that key, key=...; or {_REMEDY}"
        )
    if facts.emptied_at is not None:
        log.info("table %s: its source was emptied (TRUNCATE), and so is the table", table)
        changes = changes.where(f"{SEQUENCE} > {facts.emptied_at:d}")
    last = _last(changes, columns, key, facts)
    view = view_of(last, f"changes_of_{table}")
    spark.sql(_merge(target, view, columns, key, is_emptied=facts.emptied_at is not None))
    return True


def _columns(changes: DataFrame, there: Sequence[str], table: str, key: Sequence[str]) -> list[str]:
    """The columns that are put on the table."""
    columns = [name for name in changes.columns if name not in COLUMNS]
    known = {name.lower() for name in there}
    if unknown := [name for name in columns if name.lower() not in known]:
        kinds = {field.name: field.dataType.simpleString() for field in changes.schema.fields}
        added = ", ".join(f"{quoted(name)} {kinds[name]}" for name in unknown)
        raise ConfigurationError(  # safety: applied-to-all-columns
            f"table {table}: expected all columns of the changes, found {', '.join(unknown)} missing; add them, "
            f"ALTER TABLE ... ADD COLUMNS ({added}), and clear the task, or leave them out: changes.drop(...)"
        )
    if lacking := [name for name in (WEIGHT, *key) if name not in changes.columns]:
        raise ConfigurationError(
            f"table {table}: expected changes with the columns {', '.join(lacking)}, found "
            f"{', '.join(changes.columns)}; name columns of the table as key=..., and pass changes: epoch.source(...) "
            "or epoch.changes(...)"
        )
    told = ({*COLUMNS} - {CHANGE_TYPE, WEIGHT}) & {*changes.columns}
    if told and (missing := [name for name in _OF_A_LOG if name not in changes.columns]):
        raise ConfigurationError(  # safety: applied-with-what-tells-of-them
            f"table {table}: expected changes of a database with all that tells of them, found {', '.join(missing)} "
            "missing: without, the last change of a row, a TRUNCATE or a value that was not sent cannot be told. Take "
            "them along: SELECT * EXCEPT (...), or frame.withColumn(...)"
        )
    return columns


def _facts(changes: DataFrame, key: Sequence[str]) -> _Facts:
    names = changes.columns
    emptied, whole, unsent = "CAST(NULL AS BIGINT)", "true", "0"
    if SEQUENCE in names:
        emptied = f"max(CASE WHEN {CHANGE_TYPE} = '{TRUNCATE}' THEN {SEQUENCE} END)"
        whole = f"coalesce(bool_and({WEIGHT} <= 0 OR size({UNSENT}) = 0), true)"
        unsent = f"count_if(arrays_overlap({UNSENT}, array({', '.join(map(literal, key))})))"
    row = changes.selectExpr("count(*)", emptied, whole, unsent).first()
    assert row is not None
    return _Facts(*row)


def _last(changes: DataFrame, columns: Sequence[str], key: Sequence[str], facts: _Facts) -> DataFrame:
    """One row a key: whether it is there (``_weight``), and its other columns, each a struct of one field ``value``;
    NULL: it is what it was.
    """
    from pyspark.sql import functions as F  # noqa: N812

    others = [name for name in columns if name not in key]
    order = SEQUENCE if SEQUENCE in changes.columns else WEIGHT
    weight = f"max_by({WEIGHT}, {order})"
    if order == WEIGHT:
        twice = literal(f"expected one row a key ({', '.join(key)}), found several; name columns that tell rows apart")
        weight = f"CASE WHEN count_if({WEIGHT} > 0) > 1 THEN raise_error({twice}) ELSE max({WEIGHT}) END"
    totals = {WEIGHT: weight}
    if facts.are_whole:  # then they are of one row
        totals[_ROW] = f"max_by(struct({', '.join(map(quoted, others)) or '1'}), {order})"
        values = [f"named_struct('value', {_ROW}.{quoted(name)}) AS {quoted(name)}" for name in others]
    else:
        for name in others:
            is_known = f"{WEIGHT} > 0 AND NOT array_contains({UNSENT}, {literal(name)})"
            value = f"named_struct('value', {quoted(name)})"
            totals[name] = f"max_by({value}, CASE WHEN {is_known} THEN {order} END)"
        values = [*map(quoted, others)]
    grouped = changes.groupBy(*map(quoted, key)).agg(*(F.expr(each).alias(name) for name, each in totals.items()))
    return grouped.selectExpr(*map(quoted, key), WEIGHT, *values)


def _merge(target: str, view: str, columns: Sequence[str], key: Sequence[str], *, is_emptied: bool) -> str:
    others = [name for name in columns if name not in key]
    moved = literal(f"expected the values that an update left alone, found no row to take them from: {_REMEDY}")
    same = " AND ".join(f"t.{quoted(name)} <=> s.{quoted(name)}" for name in key)
    now = {name: _value(name, f"t.{quoted(name)}") for name in others}
    new = [*(f"s.{quoted(name)}" for name in key), *(_value(name, f"raise_error({moved})") for name in others)]
    clauses = [f"WHEN MATCHED AND s.{WEIGHT} < 0 THEN DELETE"]
    if others:
        # where all rows come once more, most are as they were, and need not be written
        equal = " AND ".join(f"t.{quoted(name)} <=> {value}" for name, value in now.items())
        updates = ", ".join(f"t.{quoted(name)} = {value}" for name, value in now.items())
        clauses.append(f"WHEN MATCHED {f'AND NOT ({equal}) ' if is_emptied else ''}THEN UPDATE SET {updates}")
    names = ", ".join(map(quoted, [*key, *others]))
    clauses.append(f"WHEN NOT MATCHED AND s.{WEIGHT} > 0 THEN INSERT ({names}) VALUES ({', '.join(new)})")
    if is_emptied:
        clauses.append("WHEN NOT MATCHED BY SOURCE THEN DELETE")
    return f"MERGE INTO {target} t USING {view} s ON {same} {' '.join(clauses)}"


def _value(name: str, otherwise: str) -> str:
    """The value of a column of :func:`_last`, ``otherwise`` where it is what it was."""
    return f"CASE WHEN s.{quoted(name)} IS NULL THEN {otherwise} ELSE s.{quoted(name)}.value END"
