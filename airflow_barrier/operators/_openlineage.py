"""What a task has read and made, in the classes of OpenLineage, which may not be there: only its listener asks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

import attr
from airflow.providers.openlineage.extractors import OperatorLineage
from openlineage.client.event_v2 import Dataset, InputDataset, OutputDataset
from openlineage.client.facet_v2 import DatasetFacet, RunFacet, dataset_version_dataset, symlinks_dataset

from airflow_barrier.protocol.datasets import At
from airflow_barrier.protocol.records import Barrier


@attr.define(kw_only=True)
class BarrierDatasetFacet(DatasetFacet):
    """The barrier that a dataset is at, and the revision that computed it; ``timestamp`` in ISO 8601, UTC."""

    topology: str
    barrier: int
    revision: int
    timestamp: str


@attr.define(kw_only=True)
class BarrierRunFacet(RunFacet):
    """The barrier that a task has worked for: the last one, if it was several."""

    topology: str
    barrier: int
    revision: int
    timestamp: str


#: By namespace and name.
Datasets = Mapping[tuple[str, str], At]
_Facet = TypeVar("_Facet", BarrierDatasetFacet, BarrierRunFacet)


def lineage_of(read: Datasets, made: Datasets) -> OperatorLineage[Any, Any]:
    barriers = {at.barrier for at in (*read.values(), *made.values())}
    last = max(barriers, key=lambda barrier: barrier.barrier_id, default=None)
    return OperatorLineage(
        inputs=[_dataset(InputDataset, *each) for each in read.items()],
        outputs=[_dataset(OutputDataset, *each) for each in made.items()],
        run_facets={} if last is None else {"barrier": _facet(BarrierRunFacet, last)},
    )


def _dataset(kind: type[Dataset], name: tuple[str, str], at: At) -> Dataset:
    facets: dict[str, DatasetFacet] = {"barrier": _facet(BarrierDatasetFacet, at.barrier)}
    if at.snapshot is not None:
        facets["version"] = dataset_version_dataset.DatasetVersionDatasetFacet(datasetVersion=str(at.snapshot))
    if at.folder is not None:
        place = symlinks_dataset.Identifier(*at.folder, type="LOCATION")
        facets["symlinks"] = symlinks_dataset.SymlinksDatasetFacet(identifiers=[place])
    return kind(*name, facets=facets)


def _facet(kind: type[_Facet], barrier: Barrier) -> _Facet:
    return kind(
        topology=barrier.topology,
        barrier=barrier.barrier_id,
        revision=barrier.computed_in,
        timestamp=barrier.timestamp.isoformat(),
    )
