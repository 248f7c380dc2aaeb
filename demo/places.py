"""Where the demo keeps things, inside the checkout; and the settings that all of its processes share."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from airflow_barrier.coordinator.settings import Settings

CHECKOUT = Path(__file__).resolve().parents[1]
#: The variable by which processes of the demo are told of a catalog that is not the MetaService's database.
CATALOG_URI = "DEMO_CATALOG_URI"


@dataclass(frozen=True)
class Places:
    """``root`` is `.demo`; ``run`` in it is made anew by each run, the jars beside it stay."""

    root: Path = CHECKOUT / ".demo"

    @property
    def run(self) -> Path:
        return self.root / "run"

    @property
    def ivy(self) -> Path:
        return Path(os.environ.get("DEMO_IVY", self.root / "ivy"))

    @property
    def warehouse(self) -> Path:
        return self.run / "warehouse"

    @property
    def database(self) -> Path:
        """One SQLite file: the MetaService and the Iceberg catalog, so that a barrier commits in one transaction."""
        return self.run / "barrier.db"

    @property
    def database_url(self) -> str:
        return f"sqlite:///{self.database}"

    @property
    def landing(self) -> Path:
        return self.run / "landing"

    @property
    def airflow(self) -> Path:
        return self.run / "airflow"

    @property
    def logs(self) -> Path:
        return self.run / "logs"

    @property
    def plain_memory(self) -> Path:
        """What the uncoordinated jobs remember from day to day."""
        return self.run / "plain"

    @property
    def held(self) -> Path:
        """Who the saboteur holds."""
        return self.run / "held.json"

    def settings(self) -> Settings:
        """The deployment: all of it in one folder and one file, unless the catalog is a server."""
        catalog = os.environ.get(CATALOG_URI, self.database_url)
        return Settings(metaservice_url=self.database_url, catalog_uri=catalog, warehouse=self.warehouse.as_uri())
