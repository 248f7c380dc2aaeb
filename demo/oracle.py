"""What every table must hold at a barrier: computed anew, in plain Python, from the landed files up to its cut.

Shares nothing with the jobs: no Spark, no deltas, no earlier result. Rows are tuples in the order of the tables' DDL.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from decimal import ROUND_HALF_UP, Decimal
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

Rows = Counter[tuple[Any, ...]]


@dataclass(frozen=True)
class Difference:
    """A table at a barrier that is not what it must be: rows it lacks, and rows it should not have."""

    table: str
    missing: Rows
    surplus: Rows

    def __str__(self) -> str:
        shown = [f"lacks {row}" for row in list(self.missing)[:2]] + [f"has {row}" for row in list(self.surplus)[:2]]
        return f"{self.table}: {self.missing.total()} rows missing, {self.surplus.total()} rows too many; " + "; ".join(
            shown
        )


def recompute(line_files: Iterable[Path], product_files: Iterable[Path]) -> dict[str, Rows]:
    """Table (without its namespace) -> its rows, over all of these files."""
    return recompute_lines(_rows(line_files), product_files)


def recompute_lines(sent: Iterable[dict[str, Any]], product_files: Iterable[Path]) -> dict[str, Rows]:
    """The same, over what tills have sent."""
    lines = _newest(sent)
    products = {row["product_id"]: row for row in _rows(product_files)}
    amounts: Counter[tuple[int, int]] = Counter()
    purchases: Counter[tuple[int, int]] = Counter()
    prices: dict[tuple[int, int], Decimal] = {}
    spend: dict[tuple[int, str], Decimal] = {}
    bought: Counter[tuple[int, str]] = Counter()
    for line in lines:
        pair = line["household_id"], line["product_id"]
        category = line["household_id"], products[line["product_id"]]["product_category"]
        amounts[pair] += line["quantity"]
        purchases[pair] += 1
        prices[pair] = prices.get(pair, Decimal(0)) + line["sales_value"]
        spend[category] = spend.get(category, Decimal(0)) + line["sales_value"]
        bought[category] += 1
    return {
        "shopping": Counter(
            (
                line["household_id"],
                line["product_id"],
                line["basket_id"],
                line["quantity"],
                line["sales_value"],
                line["transaction_timestamp"],
            )
            for line in lines
        ),
        "products": Counter(
            (row["product_id"], row["department"], row["product_category"], row["brand"]) for row in products.values()
        ),
        "user_item_amount": Counter((*pair, amounts[pair], purchases[pair]) for pair in prices),
        "user_item_price": Counter((*pair, prices[pair], purchases[pair]) for pair in prices),
        "user_category_spend": Counter((*category, spend[category], bought[category]) for category in spend),
        "user_item_avg_price": Counter((*pair, _average(prices[pair], amounts[pair])) for pair in prices),
    }


def rows_of(table: pa.Table) -> Rows:
    """The rows of what was read from a table."""
    return Counter(zip(*(column.to_pylist() for column in table.columns), strict=True))


def compare(table: str, expected: Rows, found: Rows) -> Difference | None:
    if expected == found:
        return None
    return Difference(table, missing=expected - found, surplus=found - expected)


def _newest(sent: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Of each line of a basket what was sent last, without the void ones."""
    newest: dict[tuple[int, int], dict[str, Any]] = {}
    for line in sorted(sent, key=lambda line: line["sent_at"]):
        newest[line["basket_id"], line["product_id"]] = line
    return [line for line in newest.values() if not line["void"]]


def _rows(files: Iterable[Path]) -> list[dict[str, Any]]:
    """All rows, file after file."""
    return [row for file in sorted(files) for row in _rows_of_file(file, file.stat().st_mtime_ns)]


@cache
def _rows_of_file(file: Path, _written_at: int) -> list[dict[str, Any]]:
    """Read once, until somebody corrects it; `partitioning=None` since a folder's name is not a column."""
    rows: list[dict[str, Any]] = pq.read_table(file, partitioning=None).to_pylist()
    return rows


def _average(price: Decimal, amount: int) -> Decimal | None:
    if amount == 0:
        return None
    return (price / amount).quantize(Decimal("0.00001"), rounding=ROUND_HALF_UP)
