"""A reader in a process of its own: how many of the tables have a `main`, look after look, until all have.

Run as a script with the catalog's URL, the warehouse and the tables' names. Prints `looking` after its first look and
a JSON list of the different counts it saw at the end; stops by itself after a minute.
"""

from __future__ import annotations

import json
import sys
import time

from airflow_barrier.tables.iceberg import IcebergTables
from tests.support.waiting import patience


def main(uri: str, warehouse: str, names: list[str]) -> None:
    seen: list[int] = []
    deadline = time.monotonic() + patience()
    with IcebergTables.connect(uri, warehouse) as tables:
        while len(names) not in seen and time.monotonic() < deadline:
            count = sum(snapshot is not None for snapshot in tables.mains(names).values())
            if not seen:
                print("looking", flush=True)
            if count not in seen:
                seen.append(count)
    print(json.dumps(seen), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3:])
