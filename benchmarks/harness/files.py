"""Records as JSON files, one per benchmark."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.harness.result import Picture, Record, Result, Table, Topic

RESULTS = Path(__file__).resolve().parents[1] / "results"


def save(record: Record, folder: Path = RESULTS) -> None:
    """Write `NAME.json` into the folder."""
    document = {
        "title": record.result.title,
        "topic": record.result.topic,
        "command": record.command,
        "date": record.date,
        "hardware": record.hardware,
        "method": record.result.method,
        "reference": record.result.reference,
        "tables": [asdict(table) for table in record.result.tables],
        "notes": record.result.notes,
        "picture": asdict(record.result.picture) if record.result.picture else None,
    }
    text = json.dumps(document, indent=1, ensure_ascii=False)
    (folder / f"{record.name}.json").write_text(text + "\n", encoding="utf-8")


def load(path: Path) -> Record:
    """Read one record.

    Raises:
        KeyError, TypeError, ValueError: the file is not of the form that `save` writes.
    """
    document: Mapping[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    result = Result(
        title=document["title"],
        topic=Topic(document["topic"]),
        method=document["method"],
        reference=document["reference"],
        tables=tuple(Table.of(**table) for table in document["tables"]),
        notes=tuple(document["notes"]),
        picture=Picture(**document["picture"]) if document["picture"] else None,
    )
    return Record(path.stem, result, document["command"], document["date"], document["hardware"])


def load_all(folder: Path = RESULTS) -> list[Record]:
    """All records of a folder, by name."""
    return [load(path) for path in sorted(folder.glob("*.json"))]
