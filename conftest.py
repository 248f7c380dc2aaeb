"""Lets tests import `demo`, `dags` and `tests` from the checkout, and `airflow_barrier` from where it is installed."""

from __future__ import annotations

import sys
from pathlib import Path

# At the end, so that the installed wheel wins over the checkout's folder of the same name.
sys.path.append(str(Path(__file__).parent))
