"""The changes of a join, from the changes of its sides and their shared previous state: no job keeps a second copy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce
from typing import TYPE_CHECKING

from airflow_barrier.protocol.changes import CHANGE_TYPE, WEIGHT
from airflow_barrier.protocol.errors import ConfigurationError
from airflow_barrier.spark._weights import kinds_of, labelled, netted
from airflow_barrier.spark.identifiers import quoted

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import DataType

_OTHER_WEIGHT = "_other_weight"
_BEFORE = "_matches_before"
_AFTER = "_matches_after"


def delta_join(
    left_previous: DataFrame,
    left_changes: DataFrame,
    right_previous: DataFrame,
    right_changes: DataFrame,
    on: str | Sequence[str],
    how: str = "inner",
) -> DataFrame:
    """Return what the epoch changes in ``left JOIN right USING (on)``: rows with ``_change_type`` and ``_weight`` (+1,
    -1).

    ``*_previous`` are the sides as of the previous barrier, ``*_changes`` their weighted changes since then. ``how`` is
    ``inner`` or ``left``. Columns: ``on``, the rest of the left side's, the rest of the right side's. As multisets, the
    join of the previous sides plus these rows is the join of the present ones; no row is both inserted and deleted.

        delta_join(orders, order_changes, products, product_changes, on="product_id")

    Raises :class:`~airflow_barrier.protocol.errors.ConfigurationError` for another ``how``, for columns of the same
    name beside ``on``, and for changes without ``_weight``.
    """
    keys = [on] if isinstance(on, str) else list(on)
    _check(left_previous, left_changes, right_previous, right_changes, keys, how)
    left, right = kinds_of(left_previous), kinds_of(right_previous)
    rights = {name: kind for name, kind in right.items() if name not in keys}
    kinds = {**{key: left[key] for key in keys}, **left, **rights}
    left_delta = left_changes.drop(CHANGE_TYPE)
    right_delta = right_changes.drop(CHANGE_TYPE).withColumnRenamed(WEIGHT, _OTHER_WEIGHT)

    parts = [
        left_delta.join(right_previous, keys),
        left_previous.join(right_delta, keys).withColumnRenamed(_OTHER_WEIGHT, WEIGHT),
        left_delta.join(right_delta, keys).withColumn(WEIGHT, _product()),
    ]
    if how == "left":
        for part in _without_match(left_previous, left_delta, right_previous, right_delta, keys):
            parts.append(_null_extended(part, rights))
    selected = [part.select(*map(quoted, [*kinds, WEIGHT])) for part in parts]
    frame = reduce(lambda one, other: one.union(other), selected)
    return labelled(netted(frame, kinds), list(kinds))


def _without_match(
    left_previous: DataFrame, left_delta: DataFrame, right_previous: DataFrame, right_delta: DataFrame, keys: list[str]
) -> list[DataFrame]:
    """The changes of the left rows that no right row matches; weighted.

    Left rows that changed count if nothing matches them now; those that were there count if their key lost its last
    match (+1) or got its first (-1).
    """
    from pyspark.sql import functions as F  # noqa: N812

    quoted_keys = [quoted(key) for key in keys]
    changed_keys = left_delta.select(*quoted_keys).union(right_delta.select(*quoted_keys)).distinct()
    before = right_previous.select(*quoted_keys, F.lit(1).alias(_BEFORE), F.lit(1).alias(_AFTER))
    since = right_delta.select(*quoted_keys, F.lit(0).alias(_BEFORE), F.col(_OTHER_WEIGHT).alias(_AFTER))
    matches = (
        before.join(changed_keys, keys, "left_semi")
        .union(since)
        .groupBy(*quoted_keys)
        .agg(F.sum(_BEFORE).alias(_BEFORE), F.sum(_AFTER).alias(_AFTER))
    )
    turned = F.expr(f"CASE WHEN {_BEFORE} > 0 AND {_AFTER} = 0 THEN 1 WHEN {_BEFORE} = 0 AND {_AFTER} > 0 THEN -1 END")
    return [
        left_delta.join(matches.where(f"{_AFTER} > 0"), keys, "left_anti"),
        left_previous.join(matches.withColumn(WEIGHT, turned).where(f"{WEIGHT} IS NOT NULL"), keys),
    ]


def _null_extended(frame: DataFrame, columns: Mapping[str, DataType]) -> DataFrame:
    from pyspark.sql import functions as F  # noqa: N812

    return frame.select("*", *(F.lit(None).cast(kind).alias(name) for name, kind in columns.items()))


def _product() -> Column:
    from pyspark.sql import functions as F  # noqa: N812

    return F.col(WEIGHT) * F.col(_OTHER_WEIGHT)


def _check(
    left_previous: DataFrame,
    left_changes: DataFrame,
    right_previous: DataFrame,
    right_changes: DataFrame,
    keys: list[str],
    how: str,
) -> None:
    if how not in ("inner", "left"):
        raise ConfigurationError(
            f"delta_join: expected how='inner' or 'left', found {how!r}; swap the sides for a right join"
        )
    for side, previous, changes in (
        ("left", left_previous, left_changes),
        ("right", right_previous, right_changes),
    ):
        missing = sorted({*keys} - {*previous.columns})
        if missing or not keys:
            raise ConfigurationError(
                f"delta_join: expected the columns of on={keys} on both sides, found none called {missing} on the "
                f"{side} side, which has {previous.columns}; rename columns so that both sides share the names"
            )
        expected, found = {*previous.columns, WEIGHT}, {*changes.columns} - {CHANGE_TYPE}
        if expected != found:
            raise ConfigurationError(
                f"delta_join: expected the {side} changes to have the columns of the {side} state and {WEIGHT}, that "
                f"is {sorted(expected)}, found {sorted(found)}; pass epoch.changes and epoch.previous of the same "
                "table, with the same columns selected"
            )
    shared = sorted(({*left_previous.columns} & {*right_previous.columns}) - {*keys})
    if shared:
        raise ConfigurationError(
            f"delta_join: expected only the columns of on={keys} on both sides, found {shared} there too; rename them "
            "on one side"
        )
