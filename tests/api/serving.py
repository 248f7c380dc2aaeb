"""Started as a process of its own: the API on a port, over one SQLite file, for a user who may read DAG `shop`."""

from __future__ import annotations

import sys

import uvicorn

from airflow_barrier.metaservice.store import MetaService
from tests.api.asking import Asking

if __name__ == "__main__":
    url, port = sys.argv[1:]
    asking = Asking({"prod": MetaService(url)})
    asking.may_read("shop", "shop")
    uvicorn.run(asking.app, host="127.0.0.1", port=int(port), log_level="info")
