"""The MetaService's server dies while jobs work, and comes back: what was done is adopted, or done again."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_barrier.coordinator.committing import commit_barrier
from airflow_barrier.coordinator.settings import Settings
from airflow_barrier.coordinator.staging import Adopted, Asking, begin, close, closing_uri, give_up
from airflow_barrier.protocol.errors import StoreUnavailableError
from airflow_barrier.protocol.states import AttemptState
from tests.support.postgresql import PASSWORD, PostgreSQL, without_password
from tests.support.shop import AMOUNT, PRICE, SHOPPING, make_shop

ROWS = [{"amount": 3, "price": 4}]


def test_a_metaservice_that_is_gone_for_a_while(own_postgresql: PostgreSQL, tmp_path: Path) -> None:
    with own_postgresql.database() as url:
        catalog = f"sqlite:///{tmp_path}/catalog.db"
        shop = make_shop(
            Settings(without_password(url), catalog, str(tmp_path / "warehouse"), metaservice_password=PASSWORD)
        )
        deployment = shop.deployment
        barrier = shop.open(1)

        # a submitted driver leaves its record in a file: what it did counts
        submitted = shop.begin(barrier, "load")
        own_postgresql.kill()
        record = shop.write(submitted, ROWS)
        deployment.tables.write_text(closing_uri(deployment, submitted.attempt), record.dumps(submitted.spec.nonce))
        with pytest.raises(StoreUnavailableError):
            close(deployment, submitted.attempt, actor="test")
        own_postgresql.start()
        adopted = begin(
            deployment,
            barrier,
            "load",
            Asking(request_key=submitted.attempt.request_key, generation="g0", actor="test"),
        )
        assert isinstance(adopted, Adopted)
        assert adopted.attempt.attempt_id == submitted.attempt.attempt_id

        # on Spark Connect the record dies with the task: the work is done again, and what was staged before is not seen
        connected = shop.begin(barrier, "amount")
        record = shop.write(connected, ROWS)
        own_postgresql.kill()
        with pytest.raises(StoreUnavailableError):
            close(deployment, connected.attempt, record=record, actor="test")
        with pytest.raises(StoreUnavailableError):
            give_up(deployment, connected.attempt.attempt_id, reason="failed", actor="test")
        own_postgresql.start()
        shop.process(barrier, "amount", ROWS)
        assert deployment.meta.attempts.get(connected.attempt.attempt_id).state is AttemptState.FENCED

        # and in the middle of the commit
        shop.process(barrier, "price", ROWS)
        own_postgresql.kill()
        with pytest.raises(StoreUnavailableError):
            commit_barrier(deployment, "shopping", barrier.barrier_id, actor="test")
        assert shop.main_totals() == {SHOPPING: 0, AMOUNT: 0, PRICE: 0}
        own_postgresql.start()
        shop.commit(barrier)
        assert shop.main_totals() == {SHOPPING: 4, AMOUNT: 3, PRICE: 4}
        deployment.close()
