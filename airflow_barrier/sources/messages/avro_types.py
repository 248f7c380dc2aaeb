"""What Avro leaves to its users: that the values of a writer's schema mean what a reader's schema says they do.

Avro resolves schemas by their plain types, and a registry takes what it resolves: to both, a decimal of two places is
one of three, and milliseconds are microseconds.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

_DECIMAL = "decimal"
#: Logical types that Spark makes one type of, so that it makes the same of a value whichever of them it has.
_ALIKE = ({"timestamp-millis", "timestamp-micros"}, {"local-timestamp-millis", "local-timestamp-micros"})
#: Those by which a value means something else than by its plain type.
_MEANING = {
    _DECIMAL,
    "date",
    "duration",
    *(f"time-{unit}" for unit in ("millis", "micros")),
    *(f"{kind}-{unit}" for kind in ("timestamp", "local-timestamp") for unit in ("millis", "micros", "nanos")),
}
_BECOMES = {
    "int": {"long", "float", "double"},
    "long": {"float", "double"},
    "float": {"double"},
    "string": {"bytes"},
    "bytes": {"string"},
}
_NAMED = {"record", "error", "enum", "fixed"}


def as_written(writer: Mapping[str, Any], reader: Mapping[str, Any]) -> tuple[dict[str, Any], str | None]:
    """The reader's schema with those logical types of the writer's whose values become the reader's exactly; and what
    of the others does not, in words, or None.
    """
    pairs = _Pairs(dict(_definitions(writer, "")), dict(_definitions(reader, "")))
    written = pairs.of(writer, reader, "", "", "")
    # a type that is used by its name in another place would change there as well
    wrong = pairs.wrong + (pairs.changed if pairs.by_name else [])
    return dict(written), "; ".join(wrong[:3]) or None


class _Pairs:
    def __init__(self, writers: dict[str, Any], readers: dict[str, Any]) -> None:
        self._writers, self._readers = writers, readers
        self._within: set[tuple[int, int]] = set()
        self.by_name = False
        self.changed: list[str] = []
        self.wrong: list[str] = []

    def of(self, writer: Any, reader: Any, where: str, writer_space: str, reader_space: str) -> Any:
        """``reader`` as it reads what ``writer`` wrote. Of unions each branch has the one that it becomes."""
        writers = writer if isinstance(writer, list) else [writer]
        readers = reader if isinstance(reader, list) else [reader]
        found = [*readers]
        for one in writers:
            meant = _resolved(one, self._writers, writer_space)
            kinds = [_resolved(each, self._readers, reader_space)["type"] for each in readers]
            like = [kind for kind in kinds if kind == meant["type"]]
            like += [kind for kind in kinds if kind in _BECOMES.get(meant["type"], ())]
            for place in [kinds.index(kind) for kind in like[:1]]:
                read = self._one(meant, readers[place], where, writer_space, reader_space)
                if found[place] not in (readers[place], read):
                    self.wrong.append(f"{where} has several logical types")
                found[place] = read
        return found if isinstance(reader, list) else found[0]

    def _one(self, writer: Mapping[str, Any], reader: Any, where: str, writer_space: str, reader_space: str) -> Any:
        meant = _resolved(reader, self._readers, reader_space)
        self.by_name = self.by_name or (meant is not reader and meant["type"] in _NAMED)
        if (id(writer), id(meant)) in self._within:
            return reader
        spaces = _space(writer, writer_space), _space(meant, reader_space)
        if meant["type"] in ("record", "error"):
            self._within.add((id(writer), id(meant)))
            fields = [self._field(writer, each, where, *spaces) for each in meant["fields"]]
            self._within.discard((id(writer), id(meant)))
            return {**meant, "fields": fields} if fields != meant["fields"] else reader
        inner = {"array": "items", "map": "values"}.get(meant["type"])
        if inner is not None:
            read = self.of(writer[inner], meant[inner], f"{where}[]", *spaces)
            return {**meant, inner: read} if read != meant[inner] else reader
        return self._leaf(writer, meant, reader, where)

    def _field(
        self, writer: Mapping[str, Any], field: dict[str, Any], where: str, writer_space: str, reader_space: str
    ) -> dict[str, Any]:
        names = [field["name"], *field.get("aliases", ())]
        written = next((each for name in names for each in writer["fields"] if each["name"] == name), None)
        if written is None:
            return field
        path = f"{where}.{field['name']}".lstrip(".")
        return {**field, "type": self.of(written["type"], field["type"], path, writer_space, reader_space)}

    def _leaf(self, writer: Mapping[str, Any], meant: Mapping[str, Any], reader: Any, where: str) -> Any:
        wrote, reads = _meaning(writer), _meaning(meant)
        if wrote == reads:
            return reader
        said = f"{where} is {_said(wrote)}, and {_said(reads)} here"
        if wrote is None or reads is None or meant["type"] == "fixed" or not _becomes(wrote, reads):
            self.wrong.append(said)
            return reader
        self.changed.append(said)
        logical, precision, scale = wrote
        return {**meant, "logicalType": logical, **({"precision": precision, "scale": scale} if precision else {})}


_PLAIN = {"null", "boolean", "int", "long", "float", "double", "bytes", "string"}
_Meaning = tuple[str, int, int]


def _meaning(schema: Mapping[str, Any]) -> _Meaning | None:
    logical = schema.get("logicalType")
    if logical not in _MEANING:
        return None
    numbers = (schema.get("precision", 0), schema.get("scale", 0)) if logical == _DECIMAL else (0, 0)
    return (logical, *numbers)


def _becomes(wrote: _Meaning, reads: _Meaning) -> bool:
    """Return whether each value of the one is exactly one of the other."""
    if wrote[0] == reads[0] == _DECIMAL:
        return reads[2] >= wrote[2] and reads[1] - reads[2] >= wrote[1] - wrote[2]
    return any({wrote[0], reads[0]} <= alike for alike in _ALIKE)


def _said(meaning: _Meaning | None) -> str:
    if meaning is None:
        return "of no logical type"
    return f"{_DECIMAL}({meaning[1]},{meaning[2]})" if meaning[0] == _DECIMAL else meaning[0]


def _resolved(schema: Any, named: Mapping[str, Any], space: str) -> Mapping[str, Any]:
    """The schema as an object whose type is a word."""
    if isinstance(schema, str):
        found = named.get(schema if "." in schema else f"{space}.{schema}".lstrip("."))
        return found if found is not None else {"type": schema}
    kind = schema["type"]
    inner = isinstance(kind, dict) or kind not in _NAMED | _PLAIN | {"array", "map"}
    return _resolved(kind, named, space) if inner else schema


def _space(schema: Mapping[str, Any], outer: str) -> str:
    name = str(schema.get("name", ""))
    return name.rpartition(".")[0] if "." in name else str(schema.get("namespace", outer))


def _definitions(schema: Any, space: str) -> Iterator[tuple[str, Any]]:
    """The named types that are defined in a schema, by their full names."""
    if isinstance(schema, list):
        for each in schema:
            yield from _definitions(each, space)
    elif isinstance(schema, dict):
        kind = schema.get("type")
        if isinstance(kind, str) and kind in _NAMED:
            space = _space(schema, space)
            yield f"{space}.{str(schema['name']).rpartition('.')[2]}".lstrip("."), schema
        inner = [kind, schema.get("items"), schema.get("values")]
        inner += [field["type"] for field in schema.get("fields", ())]
        for each in inner:
            if isinstance(each, (dict, list)):
                yield from _definitions(each, space)
