"""What a story is about. Each feature takes its turns up to a `yield`, where the other one has a turn."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pyarrow as pa
import pytest

from airflow_barrier.coordinator.aborting import abort_barrier
from airflow_barrier.coordinator.batching import Batch
from airflow_barrier.coordinator.compacting import open_compaction
from airflow_barrier.coordinator.opening import Later
from airflow_barrier.coordinator.recovering import recover
from airflow_barrier.coordinator.revisions.publish import NotStaged, Swapped
from airflow_barrier.coordinator.staging import Asking, Ready, begin, close
from airflow_barrier.protocol.errors import BarrierAbortedError, FencedAttemptError, VoidedAttemptError
from airflow_barrier.protocol.leases import Hold
from airflow_barrier.protocol.levels import Level
from airflow_barrier.protocol.states import AttemptState, BarrierState
from tests.recovery.backups import put_back_outside
from tests.recovery.dying import keep_two, killed_committing_at, killed_expiring_at, killed_swapping_at
from tests.stories.story import UPKEEP, Story

Feature = Callable[[Story], Iterator[None]]


def abort(story: Story) -> Iterator[None]:
    """A day is given up when half of its jobs have run, and its run starts again."""
    day = story.next_day()
    story.work(day, ["load"])
    yield
    barrier = story.barrier_of(day)
    if barrier.state in (BarrierState.OPEN, BarrierState.PRECOMMIT):
        abort_barrier(story.shop.deployment, story.name, barrier.barrier_id, reason="bad input", actor="story")
    yield
    story.finish()


def batch(story: Story) -> Iterator[None]:
    """A task goes on past its own barrier."""
    first = story.next_day()
    yield
    story.next_day()
    story.work(first - 1)
    barrier, key = story.barrier_of(first), f"shopping_dag/scheduled__{first}/load/-1"
    deployment, shop = story.shop.deployment, story.shop.shop
    step = (
        begin(deployment, barrier, "load", Asking(request_key=key, generation="1/1", actor="load"))
        if _open(barrier)
        else None
    )
    if isinstance(step, Ready):
        going = Batch(deployment, Asking(key, "1/1", "load", owner="shopping_dag"), step, 2)
        ready: Ready | None = step
        while ready is not None:
            shop._drive(deployment, ready.spec)
            going.close()
            ready = going.following()
        assert going.done
    yield
    story.finish()


def clear(story: Story) -> Iterator[None]:
    """A task is cleared while its driver works; the driver wakes up, writes, and says that it is done."""
    day = story.next_day()
    story.work(day - 1)
    story.work(day, ["load"])
    deployment, shop, barrier = story.shop.deployment, story.shop.shop, story.barrier_of(day)
    unchanged = "amount" in shop.unchanged
    key = f"shopping_dag/scheduled__{day}/amount/-1"
    slow = begin(
        deployment, barrier, "amount", Asking(request_key=key, generation="1/1", actor="amount", by_branch=unchanged)
    )
    assert isinstance(slow, Ready)
    shop._drive(deployment, slow.spec)
    yield
    story.work(day, ["amount"], generation="2/1")
    attempt = deployment.meta.attempts.get(slow.attempt.attempt_id)
    if attempt.state in (AttemptState.FENCED, AttemptState.VOIDED):
        table = deployment.tables.load(story.shop.shop.table("amounts"))
        rows = pa.Table.from_pylist([{"id": -1, "amount": -1}], table.schema().as_arrow())
        table.append(rows, branch=slow.spec.branch, snapshot_properties=shop.summary(slow.spec))
        with pytest.raises((FencedAttemptError, VoidedAttemptError, BarrierAbortedError)):
            close(deployment, attempt, actor="amount", by_branch=unchanged)
    yield
    story.finish()


def compact(story: Story) -> Iterator[None]:
    """Tables are rewritten at a barrier of their own."""
    opened = open_compaction(story.shop.deployment, story.name, None, UPKEEP)
    yield
    if opened is None or isinstance(opened, Later):
        story.finish()
        opened = open_compaction(story.shop.deployment, story.name, None, UPKEEP)
    yield
    story.finish()


def die(story: Story) -> Iterator[None]:
    """A committer gets a SIGKILL; another one ends what it began."""
    day = story.next_day()
    yield
    story.work(day)
    oldest = story.in_flight()[:1]
    if oldest and oldest[0].state is BarrierState.PRECOMMIT:
        point = 1 + story.world.number % 7
        assert killed_committing_at(point, story.backups.settings, story.name, oldest[0].barrier_id)
    yield
    story.finish()


def expiry(story: Story) -> Iterator[None]:
    """All but the newest two barriers are let go; the first expiry gets a SIGKILL."""
    story.work(story.next_day())
    yield
    assert killed_expiring_at(story.world.number % 6, story.backups.settings, story.name)
    yield
    keep_two(story.shop.deployment, story.name)
    yield
    story.finish()
    keep_two(story.shop.deployment, story.name)


def lose(story: Story) -> Iterator[None]:
    """The MetaService is lost, and recovered from the journal."""
    yield
    shops = [each.shop for each in (story.shop, story.beside) if each is not None]
    outside = story.shop.deployment.tables.metadata_locations([shop.outside for shop in shops])
    story.shop.deployment.close()
    story.backups.lose()
    story.connect()
    put_back_outside(story.shop.deployment, outside)
    for shop in shops:
        recover(story.shop.deployment, shop.name, actor="story", reason="lost")
    story.lost = True
    story.held.clear()


def read(story: Story) -> Iterator[None]:
    """Somebody holds what it reads, at both levels."""
    for level in (Level.REPEATABLE_READ, Level.READ_COMMITTED):
        answer = story.shop.deployment.meta.answers.resolve(story.name, level, hold=Hold(level.value, 600))
        if level is Level.REPEATABLE_READ:
            story.held.append((answer, story.read(answer)))
    yield
    story.work(story.next_day())
    yield
    story.finish()


def revise(story: Story) -> Iterator[None]:
    """A day is corrected, and its history computed anew; the first publisher gets a SIGKILL."""
    revision = story.begin_revision()
    yield
    story.shop.replay_all(revision)
    yield
    if not story.shop.deployment.meta.revisions.unstaged(story.name, revision.revision):
        point = story.world.number % 11
        assert killed_swapping_at(point, story.backups.settings, story.name, revision.revision)
    yield
    for _ in range(5):
        done = story.shop.publish(revision)
        if isinstance(done, Swapped):
            break
        assert isinstance(done, NotStaged)
        story.finish()
        story.shop.replay_all(revision)
    assert isinstance(done, Swapped), done


def _open(barrier: object) -> bool:
    return getattr(barrier, "state", None) is BarrierState.OPEN


FEATURES: tuple[Feature, ...] = (abort, batch, clear, compact, die, expiry, lose, read, revise)
