"""The tables of the shopping topology, as DDL. Versions and write modes are mixed on purpose: jobs need not care."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Every commit rewrites a table's metadata document; without this, all of the old ones would pile up.
_TIDY = {"write.metadata.delete-after-commit.enabled": "true", "write.metadata.previous-versions-max": "20"}
_MERGE_ON_READ = {f"write.{command}.mode": "merge-on-read" for command in ("delete", "update", "merge")}

#: table -> columns, format version, write mode
TABLES: dict[str, tuple[str, int, dict[str, str]]] = {
    "shopping": (
        "userId BIGINT, itemId BIGINT, basketId BIGINT, amount BIGINT, price DECIMAL(12, 2), ts TIMESTAMP",
        3,
        _MERGE_ON_READ,
    ),
    "products": ("itemId BIGINT, department STRING, category STRING, brand STRING", 2, {}),
    # `purchases` counts what is in a total: a total of 0 may be two purchases, a count of 0 is no row.
    "user_item_amount": ("userId BIGINT, itemId BIGINT, totalAmount BIGINT, purchases BIGINT", 3, _MERGE_ON_READ),
    "user_item_price": ("userId BIGINT, itemId BIGINT, totalPrice DECIMAL(18, 2), purchases BIGINT", 2, _MERGE_ON_READ),
    "user_category_spend": (
        "userId BIGINT, category STRING, spend DECIMAL(18, 2), purchases BIGINT",
        2,
        _MERGE_ON_READ,
    ),
    "user_item_avg_price": ("userId BIGINT, itemId BIGINT, avgPrice DECIMAL(18, 5)", 3, _MERGE_ON_READ),
}


def create_tables(spark: SparkSession, catalog: str, namespace: str = "shop") -> None:
    """Make the namespace and those tables that are not there yet."""
    spark.sql(f"CREATE NAMESPACE IF NOT EXISTS `{catalog}`.`{namespace}`")
    for table, (columns, version, mode) in TABLES.items():
        properties = {"format-version": str(version), **_TIDY, **mode}
        listed = ", ".join(f"'{key}'='{value}'" for key, value in properties.items())
        spark.sql(
            f"CREATE TABLE IF NOT EXISTS `{catalog}`.`{namespace}`.`{table}` ({columns}) "
            f"USING iceberg TBLPROPERTIES ({listed})"
        )
