"""The editor of metadata documents, on documents of any content."""

from __future__ import annotations

import copy
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from airflow_barrier.tables._metadata import Changes, edited, empty_root, obsolete_files, ref_of, refs_of, snapshots_of

OLD = "wh/t/metadata/00041-old.metadata.json"
IDS = st.integers(1, 2**63 - 1)
NAMES = st.text(min_size=1, max_size=12)
TIMES = st.integers(0, 2**45)
# The examples may take as long as a busy machine needs.
patiently = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@st.composite
def documents(draw: st.DrawFn) -> dict[str, Any]:
    version = draw(st.sampled_from([2, 3]))
    ids = draw(st.lists(IDS, unique=True, max_size=6))
    snapshots = [{"snapshot-id": each, "summary": {"operation": "append"}, "x": draw(JSON)} for each in ids]
    names = draw(st.lists(NAMES, unique=True, max_size=5)) if ids else []
    refs = {
        name: {
            "snapshot-id": draw(st.sampled_from(ids)),
            "type": draw(st.sampled_from(["branch", "tag"])),
            "y": draw(JSON),
        }
        for name in names
    }
    if ids and draw(st.booleans()):
        refs["main"] = {"snapshot-id": draw(st.sampled_from(ids)), "type": "branch"}
    unknown = draw(st.dictionaries(st.text().map(lambda key: f"x-{key}"), JSON, max_size=3))
    log = [{"timestamp-ms": draw(TIMES), "metadata-file": f"wh/t/metadata/{n}"} for n in range(draw(st.integers(0, 5)))]
    lineage = {"next-row-id": draw(st.integers(0, 2**60))} if version == 3 else {}
    return {
        "format-version": version,
        "last-sequence-number": draw(st.integers(0, 2**40)),
        "last-updated-ms": draw(TIMES),
        "current-schema-id": draw(st.integers(0, 9)),
        "properties": draw(
            st.fixed_dictionaries(
                {},
                optional={
                    "write.metadata.previous-versions-max": st.integers(0, 4).map(str),
                    "write.metadata.delete-after-commit.enabled": st.sampled_from(["true", "false"]),
                },
            )
        ),
        "current-snapshot-id": refs["main"]["snapshot-id"] if "main" in refs else -1,
        "snapshots": snapshots,
        "refs": refs,
        "snapshot-log": [],
        "metadata-log": log,
        **lineage,
        **unknown,
    }


@st.composite
def changes(draw: st.DrawFn, document: dict[str, Any]) -> Changes:
    ids = list(snapshots_of(document))
    of_type = {
        kind: [name for name, ref in document["refs"].items() if ref["type"] == kind] for kind in ("branch", "tag")
    }
    if not ids:
        return Changes(drop=frozenset(draw(st.lists(NAMES, max_size=3))))
    at = st.sampled_from(ids)
    fresh = NAMES.map(lambda name: f"new {name}")
    branches = draw(st.dictionaries(st.sampled_from([*of_type["branch"], "main"]) | fresh, at, max_size=3))
    taken = {*branches, "main"}
    tags = draw(
        st.dictionaries(st.sampled_from([*of_type["tag"], "a tag"]).filter(lambda n: n not in taken), at, max_size=2)
    )
    drop = draw(st.frozensets(st.sampled_from([*document["refs"], "not there"]), max_size=3)) - {
        *branches,
        *tags,
        "main",
    }
    return Changes(branches, tags, drop)


@patiently
@given(st.data(), documents(), TIMES, st.booleans())
def test_an_edit_changes_what_it_says_and_nothing_else(
    data: st.DataObject, document: dict[str, Any], now_ms: int, trim: bool
) -> None:
    wanted = data.draw(changes(document))
    before = copy.deepcopy(document)
    after = edited(document, wanted, location=OLD, now_ms=now_ms, trim=trim)
    assert document == before
    if after is None:
        assert all(ref_of(document, name) == at for name, at in {**wanted.branches, **wanted.tags}.items())
        assert not wanted.drop & refs_of(document).keys()
        return

    assert {name: ref_of(after, name) for name in refs_of(after)} == {
        **{name: ref["snapshot-id"] for name, ref in refs_of(document).items() if name not in wanted.drop},
        **wanted.branches,
        **wanted.tags,
    }
    for name, ref in refs_of(after).items():
        old = refs_of(document).get(name)
        if old is not None:
            assert {**ref, "snapshot-id": None} == {**old, "snapshot-id": None}
        else:
            assert ref["type"] == ("tag" if name in wanted.tags else "branch")
    assert after["last-updated-ms"] == max(now_ms, before["last-updated-ms"])
    moved = ref_of(after, "main") != ref_of(document, "main")
    assert after["current-snapshot-id"] == (ref_of(after, "main") if moved else before["current-snapshot-id"])
    entry = {"timestamp-ms": after["last-updated-ms"], "snapshot-id": ref_of(after, "main")}
    assert after["snapshot-log"] == ([entry] if moved else [])

    whole = [*before["metadata-log"], {"timestamp-ms": before["last-updated-ms"], "metadata-file": OLD}]
    length = max(1, int(before["properties"].get("write.metadata.previous-versions-max", 100)))
    assert after["metadata-log"] == (whole[-length:] if trim else whole)
    gone = tuple(each["metadata-file"] for each in whole[:-length]) if trim else ()
    asked = before["properties"].get("write.metadata.delete-after-commit.enabled") == "true"
    assert obsolete_files(before, after) == (gone if asked else ())

    edited_fields = {"refs", "last-updated-ms", "current-snapshot-id", "snapshot-log", "metadata-log"}
    assert {key: value for key, value in after.items() if key not in edited_fields} == {
        key: value for key, value in before.items() if key not in edited_fields
    }
    again = edited(after, wanted, location=OLD, now_ms=now_ms, trim=trim)
    assert again is None


@patiently
@given(documents(), IDS, TIMES)
def test_a_root_takes_a_sequence_number_and_no_row_ids(document: dict[str, Any], snapshot_id: int, now_ms: int) -> None:
    root = empty_root(document, snapshot_id, "wh/t/metadata/snap.avro", {"barrier.id": "7"}, now_ms)
    wanted = Changes(branches={"an attempt": snapshot_id}, snapshot=root)
    after = edited(document, wanted, location=OLD, now_ms=now_ms, trim=True)
    assert after is not None
    assert after["snapshots"] == [*document["snapshots"], root]
    assert after["last-sequence-number"] == root["sequence-number"] == document["last-sequence-number"] + 1
    assert after.get("next-row-id") == document.get("next-row-id")
    assert ("first-row-id" in root) == (document["format-version"] == 3)
    assert ref_of(after, "main") == ref_of(document, "main")
    assert "parent-snapshot-id" not in root


def test_a_document_without_refs_has_main_at_its_current_snapshot() -> None:
    """The field is optional: writers that know no refs leave it out, and a pinned table gets both."""
    document = {
        "format-version": 2,
        "last-updated-ms": 5,
        "current-snapshot-id": 7,
        "snapshots": [{"snapshot-id": 7, "summary": {"operation": "append"}}],
    }
    assert ref_of(document, "main") == 7
    assert ref_of({**document, "current-snapshot-id": -1}, "main") is None
    after = edited(document, Changes(tags={"held": 7}), location=OLD, now_ms=6, trim=True)
    assert after is not None
    assert {name: ref["snapshot-id"] for name, ref in after["refs"].items()} == {"main": 7, "held": 7}
    assert after["current-snapshot-id"] == 7
