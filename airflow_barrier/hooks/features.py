"""What the Airflow of this process has, where the versions that this package runs on differ.

A name that only stands elsewhere in some of them comes from ``airflow.providers.common.compat.sdk``.
"""

from __future__ import annotations

from enum import Enum

from airflow import __version__
from packaging.version import Version

from airflow_barrier.protocol.errors import ConfigurationError

AIRFLOW = Version(__version__)
#: The first version that tests run on, and the first after them.
_OLDEST, _UNKNOWN = Version("3.1"), Version("3.4")


class Feature(Enum):
    """A thing that Airflow has ``since`` a version only, and what those lose who have an older one."""

    TEAMS = ("3.2", "teams", "whether somebody may see a DAG is asked without naming its team")
    PARTITION_KEYS = (
        "3.3",
        "partition keys that a task gives to asset events",
        "the event of a published table names its barriers in `extra` alone, and announce_processed=True is refused: "
        "DAGs of other teams have a schedule of their own, and their tasks wait for tables",
    )
    RERUN_VERSION = (
        "3.3",
        "the option rerun_with_latest_version",
        "a run that the page or a task wakes runs by the version of its DAG that it had",
    )

    def __init__(self, since: str, what: str, without: str) -> None:
        self.since = Version(since)
        self.what = what
        self.without = without

    @property
    def is_there(self) -> bool:
        return self.since <= AIRFLOW


def need(feature: Feature, what: str) -> None:
    """Raise ConfigurationError if this Airflow lacks the feature that ``what`` is made of.

    >>> need(Feature.PARTITION_KEYS, "topology shopping: announce_processed=True")
    """
    if not feature.is_there:
        raise ConfigurationError(
            f"{what}: expected Airflow {feature.since} or later, which has {feature.what}, found {AIRFLOW}; leave it "
            f"out, or upgrade Airflow. Without it {feature.without}"
        )


def version_remark() -> str | None:
    """Return in a sentence that tests run on other versions of Airflow than this one; None: they run on it."""
    if _OLDEST <= AIRFLOW < _UNKNOWN:
        return None
    return (
        f"expected Airflow {_OLDEST} or later and before {_UNKNOWN}, on which this package is tested, found {AIRFLOW}; "
        "take one of these, or a release of airflow-provider-barrier that knows this one"
    )
