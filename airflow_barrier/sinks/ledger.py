"""A sink's ledger: whose it is, and what each target was delivered, and how. One policy for all sinks.

A commit is the sink's, a *position* is each target's: a sink that was let go of may come back with a table more or
fewer. So an adapter keeps a :class:`LedgerRecord` in its system, and asks :func:`opened` what it may go on from.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from airflow_barrier.protocol.deliveries import Position, Remedy, SinkDeclaration
from airflow_barrier.protocol.errors import LedgerError

#: Of ledgers, as others may have to read them later.
FORMAT = 2


@dataclass(frozen=True)
class Deliverer:
    """One who delivers to a sink for a topology of an ``incarnation`` (a recovered topology has another one).

    ``request_key`` names the task; sessions at the sink bear it, so that errors can say who holds what.
    """

    topology: str
    incarnation: str
    sink: str
    request_key: str

    def __str__(self) -> str:
        return f"sink {self.sink} of {self.topology}"


@dataclass(frozen=True)
class TargetRecord:
    """A target's entry in the ledger. ``declared``: the table and how its rows come, as at ``position``, which was
    delivered last (None: nothing yet). ``identity`` tells the target from one of the same name that was made anew;
    its ``part_of`` is the same in targets that share rows.
    """

    declared: Mapping[str, Any]
    identity: Mapping[str, Any]
    position: Position | None = None

    def to_json(self) -> dict[str, Any]:
        at = None if self.position is None else [self.position.barrier_id, self.position.revision]
        return {"declared": dict(self.declared), "identity": dict(self.identity), "position": at}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> TargetRecord:
        at = data["position"]
        return cls(data["declared"], data["identity"], None if at is None else Position(*at))


@dataclass(frozen=True)
class LedgerRecord:
    """A sink's record in the ledger. ``place`` tells its system from a copy; ``targets`` has those, too, that the
    sink is no longer declared with.
    """

    topology: str
    sink: str
    incarnation: str
    place: str
    targets: Mapping[str, TargetRecord]
    format: int = FORMAT

    @classmethod
    def of(
        cls,
        who: Deliverer,
        declared: SinkDeclaration,
        place: str,
        identities: Mapping[str, Mapping[str, Any]],
        **settings: Any,
    ) -> LedgerRecord:
        """The record of a sink that has received nothing. ``identities``: target -> its identity; ``settings``: what
        changes how rows stand there.
        """
        keys = declared.options["keys"]
        targets = {
            target: TargetRecord(
                {"table": table, "rows": declared.rows.value, "key": keys.get(target), **settings}, identities[target]
            )
            for table, target in sorted(declared.targets.items())
        }
        return cls(who.topology, who.sink, who.incarnation, place, targets)

    def __str__(self) -> str:
        return f"sink {self.sink} of {self.topology}"

    @property
    def position(self) -> Position | None:
        """The barrier of the last delivery; a target may lag, or have received nothing yet."""
        return max((each.position for each in self.targets.values() if each.position is not None), default=None)

    def delivered(self, ours: LedgerRecord, position: Position) -> LedgerRecord:
        """The record after a delivery to all targets of ``ours``."""
        now = {target: replace(each, position=position) for target, each in ours.targets.items()}
        return replace(self, targets={**self.targets, **now})

    def to_json(self) -> dict[str, Any]:
        return {**vars(self), "targets": {target: each.to_json() for target, each in self.targets.items()}}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> LedgerRecord:
        """Other entries are passed over; of another format only the targets' names are read. Raises KeyError, TypeError
        or ValueError for what is no record.
        """
        names = ("topology", "sink", "incarnation", "place", "format")
        known = data["format"] == FORMAT
        targets = {
            target: TargetRecord.from_json(each) if known else TargetRecord({}, {})
            for target, each in dict(data["targets"]).items()
        }
        return cls(**{name: data[name] for name in names}, targets=targets)


@dataclass(frozen=True)
class Words:
    """The words of a sink's errors. ``ledger``: where it is. ``place`` and ``target``: what these are called.
    ``another``: what a clone does instead; ``copied``: what has to hold before deliveries move to a copy; ``anew``:
    how a target is
    loaded anew.
    """

    ledger: str
    place: str
    target: str
    another: str
    copied: str
    anew: str


def command(verb: str, who: Deliverer | LedgerRecord) -> str:
    return f"airflow-barrier sink {verb} {who.topology} {who.sink} --reason ..."


def opened(
    who: Deliverer, words: Words, seen: LedgerRecord | None, ours: LedgerRecord, remedy: Remedy | None
) -> LedgerRecord:
    """The record to go on from: ``ours``, with what was ``seen`` in the ledger, the targets' positions above all.

    A person's ``remedy`` lets in what another incarnation wrote, what stands at another place, and targets that were
    made anew; REDELIVER also targets that were delivered otherwise. Raises LedgerError for all else.
    """
    if seen is None:
        return ours
    here = f"{who}: {words.ledger}"
    if seen.format != FORMAT:
        raise LedgerError(  # safety: ledger-of-this-format
            f"{here}: expected format {FORMAT}, found {seen.format}; run the version of airflow-provider-barrier that "
            "wrote it, or a newer one"
        )
    if seen.position is not None and remedy is None:
        _check_origin(here, who, words, seen, ours)
    targets = dict(ours.targets)
    for name, then in seen.targets.items():
        if then.position is None:
            continue
        target = name if name in ours.targets else _renamed(name, then, seen, ours)
        now = ours.targets.get(target, then)
        if remedy is None and now.identity != then.identity:
            raise LedgerError(  # safety: ledger-of-this-target
                f"{here}: expected {words.target} {target} to be the one that was delivered up to {then.position}, "
                f"found one that was made anew or changed since ({_changed(then.identity, now.identity)}). If it holds "
                f"all that was delivered: {command('adopt', who)} {words.anew}"
            )
        if remedy is not Remedy.REDELIVER and now.declared != then.declared:
            raise LedgerError(  # safety: delivered-as-declared
                f"{here}: expected {words.target} {target} to be declared as it was when {then.position} was "
                f"delivered, found {_changed(then.declared, now.declared)}; declare it as it was. {words.anew}"
            )
        targets[target] = replace(then, identity=now.identity)
    return replace(ours, targets=targets)


def check_follows(what: str, position: Position, after: Position | None, here: Position | None) -> None:
    """Raises LedgerError where a delivery of ``position``, which is to come after ``after``, does not follow on
    ``here``, the position that the ledger says.
    """
    if after != here or (here is not None and position <= here):
        raise LedgerError(  # safety: after-what-was-delivered
            f"{what}: expected a barrier after {here or 'none'}, which is what the ledger says, found {position}, "
            f"which comes after {after or 'none'}; ask the ledger again"
        )


def _check_origin(here: str, who: Deliverer, words: Words, seen: LedgerRecord, ours: LedgerRecord) -> None:
    if seen.incarnation != ours.incarnation:
        raise LedgerError(  # safety: ledger-of-this-incarnation
            f"{here}: expected the record of this MetaService (incarnation {ours.incarnation}), found that of another "
            f"one ({seen.incarnation}), which delivered up to {seen.position}. If this MetaService was recovered and "
            f"goes on with the sink: {command('adopt', who)} If it is a clone of one that still delivers, "
            f"{words.another}"
        )
    if seen.place != ours.place:
        raise LedgerError(  # safety: ledger-of-this-place
            f"{here}: expected the {words.place} that it was begun in ({seen.place}), found a copy of it "
            f"({ours.place}), which was delivered up to {seen.position}. {words.copied}: {command('adopt', who)} "
            f"{words.anew}"
        )


def _renamed(name: str, then: TargetRecord, seen: LedgerRecord, ours: LedgerRecord) -> str:
    """Return the present name of a target that is declared by another one now; else its own."""
    same = (each for each, now in ours.targets.items() if then.identity and now.identity == then.identity)
    return next((each for each in same if each not in seen.targets), name)


def _changed(then: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """Return in words what two records of a target say differently."""
    return ", ".join(
        f"{name} {now.get(name)} instead of {then.get(name)}"
        for name in sorted({*then, *now})
        if then.get(name) != now.get(name)
    )


def check_others(
    who: Deliverer,
    words: Words,
    ours: LedgerRecord,
    others: Iterable[LedgerRecord],
    ledger: str,
    forget: Callable[[LedgerRecord, str], str] = lambda other, target: "",
) -> None:
    """A target is fed by one sink. ``others``: what stands in ``ledger`` beside our own record. ``forget``: how a
    target of another sink is freed, in words. Raises LedgerError.
    """
    for other in others:
        shared = (
            name
            for target, now in ours.targets.items()
            for name, then in other.targets.items()
            if target == name or (other.place == ours.place and _are_one(now.identity, then.identity))
        )
        target = next(shared, None)
        if target is None:
            continue
        ways = [f"name another {words.target}"]
        if (other.topology, other.sink) == (who.topology, who.sink):
            ways.append("or that ledger, and the sink goes on from there")
        elif other.topology == who.topology:
            ways.append(f"or, if this sink has another name since, call it {other.sink}, and it goes on from there")
        raise LedgerError(  # safety: target-of-one-sink
            f"{who}: expected targets ({', '.join(ours.targets)}) to which no other sink delivers, found that {other} "
            f"delivers to {target} by the ledger {ledger}; {', '.join(ways)}{forget(other, target)}"
        )


def _are_one(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Return True if two targets are parts of the same, by whatever names."""
    return "part_of" in one and one["part_of"] == other.get("part_of")
