"""Whether tables have got to a state at a barrier."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from airflow_barrier.protocol.errors import ConfigurationError, UnknownTableError
from airflow_barrier.protocol.records import Barrier
from airflow_barrier.protocol.states import DECIDED_BARRIERS, BarrierState, TableState

#: Which states count as having reached one, and which state of its tables a barrier's means.
_BARRIER_TARGETS = {
    BarrierState.PRECOMMIT: (DECIDED_BARRIERS | {BarrierState.PRECOMMIT}, TableState.PROCESSED),
    BarrierState.COMMIT: (frozenset({BarrierState.COMMIT}), TableState.WRITTEN),
}
_TABLE_TARGETS = {
    TableState.PROCESSED: frozenset({TableState.PROCESSED, TableState.WRITTEN}),
    TableState.WRITTEN: frozenset({TableState.WRITTEN}),
}


@dataclass(frozen=True)
class Reached:
    """The answer to whether tables have got to a state at a barrier; ``missing``: those that have not. For sensors."""

    done: bool
    missing: tuple[str, ...]
    aborted: bool
    barrier_state: BarrierState


@dataclass(frozen=True)
class Standing:
    """The state of each table of a barrier."""

    barrier: Barrier
    tables: Mapping[str, TableState]

    def reached(self, tables: Sequence[str] | None, target: TableState | BarrierState) -> Reached:
        """Return whether ``tables`` (None: all) are at ``target`` or beyond. Raises UnknownTableError.

        >>> from datetime import datetime, timezone
        >>> day = datetime(2025, 1, 1, tzinfo=timezone.utc)
        >>> barrier = Barrier("shopping", 1, day, BarrierState.OPEN, 0, 1, "dag/run", "test", day)
        >>> standing = Standing(barrier, {"shop.a": TableState.PROCESSED, "shop.b": TableState.PENDING})
        >>> standing.reached(["shop.a"], TableState.PROCESSED).done
        True
        >>> standing.reached(None, BarrierState.PRECOMMIT).missing
        ('shop.b',)
        """
        enough = _TABLE_TARGETS[_table_target(self.barrier, target)]
        wanted = self._chosen(tables)
        missing = tuple(name for name in wanted if self.tables[name] not in enough)
        if self.barrier.state is BarrierState.ABORTED:
            return Reached(False, missing, True, self.barrier.state)
        done = not missing
        if isinstance(target, BarrierState):
            done = self.barrier.state in _BARRIER_TARGETS[target][0] or (
                target is BarrierState.PRECOMMIT and self._only_to_be_carried()
            )
        return Reached(done, missing, False, self.barrier.state)

    def _chosen(self, tables: Sequence[str] | None) -> tuple[str, ...]:
        if tables is None:
            return tuple(self.tables)
        unknown = sorted(set(tables) - set(self.tables))
        if unknown:
            raise UnknownTableError(
                f"{self.barrier}: expected its tables, which are {', '.join(sorted(self.tables)) or 'none'}; found "
                f"{', '.join(unknown)}; correct the name, or wait for a barrier that has it"
            )
        return tuple(tables)

    def _only_to_be_carried(self) -> bool:
        """Return whether a maintenance barrier lacks nothing that its commit does not do by itself."""
        open_still = self.barrier.is_maintenance and self.barrier.state is BarrierState.OPEN
        return open_still and TableState.PENDING not in self.tables.values()


def _table_target(barrier: Barrier, target: TableState | BarrierState) -> TableState:
    if isinstance(target, BarrierState):
        if target not in _BARRIER_TARGETS:
            raise ConfigurationError(
                f"{barrier}: expected to wait for PRECOMMIT or COMMIT, found {target.value}; wait for one of these"
            )
        return _BARRIER_TARGETS[target][1]
    if target not in _TABLE_TARGETS:
        raise ConfigurationError(
            f"{barrier}: expected to wait for PROCESSED or WRITTEN, found {target.value}; wait for one of these"
        )
    return target
