"""What each folder of tests may cost at a landing, in seconds of CPU.

The figures are of landings on the reference host (`slowness.py`), 25 November 2026, whose draws differ. Those of
tests/crash, tests/mutation and tests/races are below what was measured: that landing changed 31 files.
"""

from __future__ import annotations

from collections.abc import Mapping

#: A run that is over by more than this part of a budget says so in its last lines.
TOLERANCE = 0.2
BUDGETS: Mapping[str, int] = {
    "Spark Connect servers": 415,
    "tests/adopting": 25,
    "tests/airflow": 250,
    "tests/api": 75,
    "tests/batching": 25,
    "tests/benchmarks": 30,
    "tests/catalogs": 45,
    "tests/cli": 55,
    "tests/cluster": 65,
    "tests/coordinator": 65,
    "tests/crash": 200,
    "tests/delivering": 70,
    "tests/demo": 60,
    "tests/expiry": 40,
    "tests/foreign": 80,
    "tests/handover": 10,
    "tests/hostile": 20,
    "tests/metaservice": 185,
    "tests/model": 100,
    "tests/mutation": 150,
    "tests/postgresql": 90,
    "tests/protocol": 5,
    "tests/races": 120,
    "tests/reading": 60,
    "tests/recovery": 100,
    "tests/revising": 115,
    "tests/scale": 25,
    "tests/sinks": 60,
    "tests/sources": 20,
    "tests/spark": 120,
    "tests/stories": 60,
    "tests/tables": 20,
    "tests/test_documents.py": 5,
    "tests/test_hanging.py": 10,
    "tests/test_house.py": 10,
    "tests/test_landing.py": 5,
    "tests/test_packaging.py": 15,
    "tests/test_ports.py": 5,
    "tests/tutorials": 110,
    "tests/ui": 120,
}
