"""The profile of an epoch: how Spark is told that there is little to read, where its own conf is for much.

For a few megabytes Spark spends more on deciding while it runs, on a job for each stage and on tasks without rows, than
on the rows. The worker chooses, since it knows how many bytes there are; the driver sets what no user has set.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil
from typing import TYPE_CHECKING

from airflow_barrier.spark._conf import unset_conf

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from airflow_barrier.spark.spec import EpochSpec

log = logging.getLogger(__name__)

#: The most bytes, at rest, that an epoch reads which is small.
MOST_BYTES = 64 << 20
#: Bytes, at rest, that one core goes through no later than several do that have to be planned and fed (0075).
_A_PARTITION = 8 << 20
#: The conf by which a session knows what it was given, so that it is taken back before an epoch that has none of it.
_GIVEN = "spark.airflow_barrier.profile"


@dataclass(frozen=True)
class Inlet:
    """Bytes, at rest, of a table's files: of those that the epoch's changes are in, and of all at its end; None: nobody
    knows.
    """

    changed: int | None
    whole: int | None


@dataclass(frozen=True)
class Profile:
    """Spark's conf for one epoch (empty: its own stays), and the ``reason``. ``large``: inlets that it is too much to
    read whole with that conf.
    """

    conf: Mapping[str, str]
    large: tuple[str, ...]
    reason: str


SPARKS_OWN = Profile({}, (), "")


def profile_of(inlets: Mapping[str, Inlet], others: Mapping[str, int | None]) -> Profile:
    """Return the profile of an epoch that reads the changes of ``inlets``, or all of them, and ``others`` whole: what a
    MERGE reads of its outlets, and external sources, by name with their bytes (None: nobody knows).

    >>> profile_of({"shop.a": Inlet(changed=1_000, whole=10**12)}, {"shop.b": 5_000}).large
    ('shop.a',)
    """
    sizes = {**{name: inlet.changed for name, inlet in inlets.items()}, **others}
    unknown = sorted(name for name, size in sizes.items() if size is None)
    if unknown:
        return Profile({}, (), f"it is not known how many bytes it reads of {', '.join(unknown)}")
    count = sum(size or 0 for size in sizes.values())
    if count > MOST_BYTES:
        return Profile({}, (), f"it may read {count:,} bytes, more than {MOST_BYTES:,}")
    large = []
    for name, inlet in sorted(inlets.items(), key=lambda item: item[1].whole or 0):
        if inlet.whole is None or count + inlet.whole > MOST_BYTES:
            large.append(name)
        else:
            count += inlet.whole
    besides = f", and of {', '.join(sorted(large))} the changes only" if large else ""
    conf = {
        "spark.sql.adaptive.enabled": "false",
        "spark.sql.shuffle.partitions": str(max(1, ceil(count / _A_PARTITION))),
    }
    return Profile(conf, tuple(sorted(large)), f"it reads at most {count:,} bytes{besides}")


def conf_for(spark: SparkSession, spec: EpochSpec, found: Mapping[str, str]) -> dict[str, str]:
    """Return the conf of the epoch's profile, to be set in its session: all of it, or nothing where the user's own
    says something else.

    ``found``: the session's conf. Takes back what an earlier epoch of the session was given and this one is not.
    """
    given = {key: value for key, value in _parsed(found.get(_GIVEN, "")).items() if found.get(key) == value}
    said = {key: found[key] for key in spec.conf if key in found and key not in given}
    against = ", ".join(f"{key}={value}" for key, value in said.items() if value != spec.conf[key])
    if against:
        log.info("job %s keeps Spark's conf, although its epoch is small: the user's has %s", spec.job, against)
    conf = {} if against else {key: value for key, value in spec.conf.items() if key not in said}
    unset_conf(spark, given.keys() - conf.keys())
    return {**conf, _GIVEN: _text(conf)} if conf or given else {}


def take_back(spark: SparkSession) -> None:
    """Let the session have Spark's own conf again, for an epoch that reads more than its profile is for."""
    given = spark.conf.get(_GIVEN, "")
    unset_conf(spark, (*_parsed(given), _GIVEN) if given else ())


def _text(conf: Mapping[str, str]) -> str:
    return ",".join(f"{key}={value}" for key, value in conf.items())


def _parsed(text: str) -> dict[str, str]:
    return dict(pair.split("=", 1) for pair in text.split(",") if pair)
