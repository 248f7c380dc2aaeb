"""What each folder of tests may cost at a landing, in seconds of CPU.

The figures are of landings on two cores, half of them beside other work (23 and 24 November 2026): the larger one of
each folder, since each landing draws another part.
"""

from __future__ import annotations

from collections.abc import Mapping

#: A run that is over by more than this part of a budget says so in its last lines.
TOLERANCE = 0.2
BUDGETS: Mapping[str, int] = {
    "Spark Connect servers": 860,
    "tests/adopting": 25,
    "tests/airflow": 550,
    "tests/batching": 25,
    "tests/benchmarks": 40,
    "tests/catalogs": 55,
    "tests/cli": 50,
    "tests/cluster": 65,
    "tests/coordinator": 45,
    "tests/crash": 260,
    "tests/demo": 65,
    "tests/expiry": 30,
    "tests/foreign": 110,
    "tests/handover": 5,
    "tests/hostile": 30,
    "tests/metaservice": 150,
    "tests/model": 145,
    "tests/mutation": 250,
    "tests/postgresql": 120,
    "tests/protocol": 5,
    "tests/races": 180,
    "tests/reading": 80,
    "tests/recovery": 85,
    "tests/revising": 110,
    "tests/scale": 25,
    "tests/sources": 45,
    "tests/spark": 160,
    "tests/stories": 100,
    "tests/tables": 60,
    "tests/test_hanging.py": 15,
    "tests/test_landing.py": 5,
    "tests/test_packaging.py": 15,
    "tests/test_ports.py": 5,
}
