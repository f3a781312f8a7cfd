"""Worker: reads files in a process of its own, which may hang, run out of memory or crash and harms no import.

A request is a line of JSON (`name`, `kind`, `size`, `settings`) and the bytes of the file; the answer is one line: the
`rows` of `corpus.jsonl` and the `record` of the file, or the library that is `missing`.
"""

import hashlib
import json
import os
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from typing import cast

from coseek.core.files import Json, JsonObject
from coseek.core.settings import make_settings
from coseek.data.documents.archive import DocumentSettings
from coseek.data.documents.document import Document, DocumentFault, clean
from coseek.data.documents.readers import read_document
from coseek.data.documents.split import count_words, counter, split

TITLE_STEP = " › "
_MAX_TITLE = 300
_MAX_REASONS = 20


def read_file(kind: str, data: bytes, name: str, settings: DocumentSettings) -> JsonObject:
    """The answer for one file. The record has `outcome`: read, in part or failed."""
    rows: list[JsonObject] = []
    reasons: list[str] = []
    record: JsonObject = {"path": name, "kind": kind}
    try:
        document = read_document(kind, data, name)
        rows, reasons = list(_passages(document, name, settings)), document.faults
        if document.encoding:
            record["encoding"] = document.encoding.replace("cp125", "windows-125")
    except DocumentFault as fault:
        reasons = [str(fault)]
    except ModuleNotFoundError as error:
        return {"missing": (error.name or "").partition(".")[0]}
    except MemoryError:
        reasons = ["it needs more memory than there is (max_memory_mb)"]
    except RecursionError:
        reasons = ["it is nested too deeply"]
    except Exception as error:  # noqa: BLE001 (a parser's bug is that file's fault)
        reasons = [f"its reader failed ({type(error).__name__}: {str(error)[:200]})"]
    if len(reasons) > _MAX_REASONS:
        reasons = [*reasons[:_MAX_REASONS], f"and {len(reasons) - _MAX_REASONS} more"]
    if not rows and not reasons:
        reasons = ["there is no text in it"]
    outcome = "read" if not reasons else "in part" if rows else "failed"
    words = sum(count_words(str(row["text"])) for row in rows)
    shown: list[Json] = [" ".join(reason.split()) for reason in reasons]
    record |= {"outcome": outcome, "reasons": shown, "passages": len(rows), "words": words}
    return {"rows": [*rows], "record": {**record, "sha256": hashlib.sha256(data).hexdigest()}}


def _passages(document: Document, path: str, settings: DocumentSettings) -> Iterator[JsonObject]:
    """The rows of `corpus.jsonl`. `previous` and `next` are the ids of a passage's neighbours.

    An id is a digest of path, title and text, so that it does not depend on the other passages.
    """
    seen: Counter[str] = Counter()
    last: JsonObject | None = None
    name = path.rpartition("/")[2]
    stem = document.title or name.rpartition(".")[0] or name
    own = {clean(key): _cleaned(value) for key, value in document.meta.items() if key not in ("previous", "next")}
    for section in document.sections:
        steps = [step for place, step in enumerate(section.headings) if place or step != stem]
        title = " ".join(clean(TITLE_STEP.join([stem, *steps])).split())[:_MAX_TITLE]
        for text in split(section.blocks, settings.size, settings.overlap, counter(settings.tokenizer)):
            base = f"{path}\0{title}\0{text}"
            seen[base] += 1
            ident = hashlib.sha256(f"{base}\0{seen[base]}".encode()).hexdigest()[:16]
            meta: JsonObject = {**own, **section.meta, "path": path}
            if last is not None:
                cast(JsonObject, last["meta"])["next"] = ident
                meta["previous"] = last["id"]
                yield last
            last = {"id": ident, "title": title, "text": text, "meta": meta}
    if last is not None:
        yield last


def _cleaned(value: Json) -> Json:
    if isinstance(value, list):
        return [_cleaned(one) for one in value]
    return clean(value) if isinstance(value, str) else value


def main() -> None:
    # What libraries print must not stand among the answers.
    out, silence = os.fdopen(os.dup(1), "wb"), os.open(os.devnull, os.O_WRONLY)
    os.dup2(silence, 1)
    os.dup2(silence, 2)
    out.write(b"ready\n")
    out.flush()
    for line in iter(sys.stdin.buffer.readline, b""):
        request = json.loads(line)
        settings = make_settings(DocumentSettings, request["settings"])
        with suppress(ImportError, ValueError, OSError):  # Windows has no such limits, and macOS none that hold
            import resource

            resource.setrlimit(resource.RLIMIT_AS, (settings.max_memory_mb << 20,) * 2)
        answer = read_file(request["kind"], sys.stdin.buffer.read(request["size"]), request["name"], settings)
        out.write(json.dumps(answer).encode() + b"\n")
        out.flush()
