"""Names that a hostile or merely unlucky person gives, and what each kind of thing makes of them."""

from __future__ import annotations

#: Every table, job, DAG or source may be called so.
WORKABLE = (
    "o'brien",
    'say "hi"',
    "back`tick`",
    "two  blanks",
    "a/b/c",
    "back\\slash",
    "/etc/passwd",
    "100%",
    "%2E%2E%2F%2Fx",
    "semi;colon",
    "a&b=c",
    "caf\u00e9",
    "cafe\u0301",  # the same to the eye, another name to every database
    "שלום",
    "🧺👩\u200d👩\u200d👧",
    "x" * 250,
    "SELECT",
    'x"; DROP TABLE iceberg_tables --',
    "x'; DROP TABLE barrier_topology; --",
    "a*[b]c",
    "$HOME ~ @x",
    "<script>alert(1)</script>",
    "[red]x[/]",
    "main",
    "branch_main",
    "snapshot_id_5",
    "refs",
    "--conf",
)

#: Nothing may be called so.
UNPRINTABLE = (
    "",
    " ",
    " lead",
    "trail ",
    "new\nline",
    "carriage\rreturn",
    "tab\tulator",
    "nul\0l",
    "esc\x1b[2J",
    "nel\x85",
    "separator\u2028",
    "half \ud800",
    "\u202egnp.exe",
    "\u2066isolated",
    "x" * 251,
)

#: Nor a table, beside what :data:`UNPRINTABLE` holds; dots part namespaces.
NO_TABLES = (
    "..",
    "../../etc/passwd",
    "a/../../b",
    ".",
    "a.",
    ".a",
    "question?",
    "hash#tag",
    "colon:ised",
    "{target:x}",
    "{{ ds }}",
    "é" * 226,
)

#: Nor a topology, which becomes part of branches, tags and paths.
NO_TOPOLOGIES = (
    *UNPRINTABLE,
    *(name for name in WORKABLE if name not in ("SELECT", "main", "branch_main", "snapshot_id_5", "refs")),
    *NO_TABLES,
    "trailing_newline\n",
    "1st",
    "x" * 101,
    "Ⅷ",
    "a٣",
)
