"""Leading several epochs through one spark-submit: a thread reports each as it is closed, and says what comes next."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from airflow_barrier.coordinator.batching import Batch
from airflow_barrier.coordinator.staging import Ready, closing_uri
from airflow_barrier.spark.batch import Following, following_uri

log = logging.getLogger(__name__)

#: Seconds between two looks for a closing record; the driver stands still in between.
_POLL = 0.5


def submit_batch(batch: Batch, submit: Callable[[Ready], None]) -> None:
    """Run ``submit``, which returns when the driver has ended, and lead the driver from epoch to epoch meanwhile.

    Raises what ``submit`` and :class:`~airflow_barrier.coordinator.batching.Batch` raise.
    """
    watcher = _Watcher(batch)
    watcher.start()
    try:
        submit(batch.first)
    except Exception as error:
        watcher.stop()
        if watcher.error is not None:  # it came first: a driver whose record is not taken may well fail of that
            raise watcher.error from error
        raise
    finally:
        watcher.stop()
    if watcher.error is not None:
        raise watcher.error
    batch.close()  # of an epoch that the driver did not close this says so


class _Watcher(threading.Thread):
    def __init__(self, batch: Batch) -> None:
        super().__init__(name="barrier-batch", daemon=True)
        self.error: Exception | None = None
        self._batch = batch
        self._ended = threading.Event()

    def stop(self) -> None:
        """The driver has ended: nothing more begins, and what is just being closed is closed."""
        self._ended.set()
        self.join()

    def run(self) -> None:
        while (ready := self._batch.under_way) is not None and not self._ended.wait(_POLL):
            try:
                self._look(ready)
            except Exception as error:  # the task raises it, once the driver has been told and has ended
                self.error = error
                self._tell(ready, Following())
                return

    def _look(self, ready: Ready) -> None:
        deployment = self._batch.deployment
        if not deployment.tables.exists(closing_uri(deployment, ready.attempt)):
            return
        self._batch.close()
        following = None if self._ended.is_set() else self._batch.following()
        self._tell(ready, Following() if following is None else Following(following.spec_uri, following.digest))

    def _tell(self, ready: Ready, following: Following) -> None:
        deployment = self._batch.deployment
        uri = following_uri(closing_uri(deployment, ready.attempt))
        try:
            deployment.tables.write_text(uri, following.dumps(ready.spec.nonce))
        except Exception as error:
            log.warning("the driver could not be told at %s what to do next, and will end by itself: %s", uri, error)
