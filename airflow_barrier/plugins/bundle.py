"""The page's one file, built from `ui/` by `scripts/ui.sh`, and its URL. Every process of Airflow loads this."""

from __future__ import annotations

from hashlib import blake2b
from pathlib import Path

from airflow_barrier.links.barrier import URL_PREFIX

BUNDLE = Path(__file__).parent / "static" / "barriers.js"
#: Of its content, so that browsers keep it for long and see another one at once. Takes a tenth of a millisecond.
VERSION = blake2b(BUNDLE.read_bytes(), digest_size=8).hexdigest()
#: Where the plugin's application serves it.
ROUTE = "/static/barriers.js"
#: From Airflow's base URL.
URL = f"{URL_PREFIX.removeprefix('/')}{ROUTE}?v={VERSION}"
