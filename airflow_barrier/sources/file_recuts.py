"""The files of past epochs as they are now: for who computes these epochs again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime

from airflow_barrier.protocol.errors import RevisionRefusedError
from airflow_barrier.protocol.records import Cut
from airflow_barrier.sources.file_cuts import EventTime, cut_anew, look, unused
from airflow_barrier.sources.listing import Folder, LandedFile

_Used = Callable[[Sequence[str]], set[str]]
_Position = Callable[[LandedFile], datetime | None]


def by_position(cuts: Sequence[Cut], folder: Folder, used: _Used, position: _Position) -> list[Cut]:
    """A file that nobody has used joins the epoch that its position is in."""
    landed = [(file, position(file)) for file in unused(folder.files(), used)]
    anew = [cut_anew(_with(cut, landed), folder, None) for cut in cuts]
    return [Cut(cut.source, cut.start, {**cut.end, "late": _count_late(cut, position)}, cut.items) for cut in anew]


def by_event_time(cuts: Sequence[Cut], folder: Folder, used: _Used, by: EventTime) -> list[Cut]:
    """A file that nobody has used joins the epoch of the earliest record in it; what it holds for later ones is held
    over to them, unless they are past the last of ``cuts``.
    """
    landed = [(one.file, one.span.oldest) for one in look(folder, by, unused(folder.files(), used))]
    anew: list[Cut] = []
    for cut in cuts:
        before = cut if not anew else Cut(cut.source, _beginning(cut, anew[-1]), cut.end, cut.items)
        anew.append(cut_anew(_with(before, landed), folder, by))
    was, now = (_held_by_path(each[-1]) for each in (cuts, anew))
    changed = sorted(path for path in was.keys() | now.keys() if was.get(path) != now.get(path))
    if changed:
        raise RevisionRefusedError(  # safety: held-over-stays
            f"source {cuts[-1].source}: expected that what its last epoch leaves to later ones stays as it was, found "
            f"that {changed[0]}, which has records of later ones too, is another by now; take along the days of all "
            "its records (--to), deliver them in files of their own, or say what replaces the epochs (--file)"
        )
    return anew


def _with(cut: Cut, landed: Sequence[tuple[LandedFile, datetime | None]]) -> Cut:
    """The cut and the files that belong to its time, after its start and up to its end."""
    after, until = _after(cut), datetime.fromisoformat(cut.end["time"])
    joining = [file for file, at in landed if at is not None and at <= until and (after is None or at > after)]
    files = [*cut.end["files"], *(file.to_json() for file in joining)]
    files.sort(key=lambda entry: str(entry["path"]))
    return Cut(cut.source, cut.start, {**cut.end, "files": files}, (*cut.items, *(file.path for file in joining)))


def _after(cut: Cut) -> datetime | None:
    return datetime.fromisoformat(cut.start["time"]) if cut.start and "time" in cut.start else None


def _count_late(cut: Cut, position: _Position) -> int:
    after = _after(cut)
    positions = [position(LandedFile.from_json(entry)) for entry in cut.end["files"]]
    return sum(after is not None and at is not None and at <= after for at in positions)


def _beginning(cut: Cut, before: Cut) -> dict[str, object]:
    """Its start, with what the epoch before it holds over by now."""
    return {**(cut.start or {}), "held": before.end["held"]}


def _held_by_path(cut: Cut) -> dict[str, object]:
    return {entry["path"]: entry for entry in cut.end["held"]}
