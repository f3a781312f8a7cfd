"""One reader: files are parsed by few modules, which name file, line and field and keep limits; nothing else parses."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.source_tree import PACKAGE, dotted, imported_names, nodes

READERS = {
    "core/strict_json.py": "JSON",
    "core/strict_yaml.py": "YAML",
    "core/files.py": "JSON, JSONL and YAML files, plain or gzipped",
    "core/cache.py": "the SQLite file of cached texts",
    "data/array_file.py": "arrays of indexes",
    "data/trec.py": "quoted columns of judgements",
    "data/imports/_sources.py": "CSV and parquet of published data sets",
    "data/documents/archive.py": "archives of documents, in a process of its own",
    "data/documents/office.py": "DOCX, in that process",
    "data/documents/rows.py": "CSV, in that process",
    "data/documents/converted.py": "sizes in slides, sheets and books",
    "models/pretrained.py": "weights of model folders",
    "data/documents/token_count.py": "tokenizers of model folders",
    "models/tokenizer.py": "tokenizers of model folders",
    "pipelines/dry_run.py": "configurations of model folders",
    "retrieval/retrievers/rerank.py": "folders of cross-encoders",
    "retrieval/vectors/encoder.py": "folders of encoders",
    "retrieval/vectors/embedding_retriever.py": "tokenizers of encoders",
    "training/trainer/checkpoint.py": "checkpoints, whose digests were compared",
    "training/encoder/trainer.py": "checkpoints of encoders, which only their training writes",
    "training/encoder/laptop_encoder.py": "no file: makes an encoder of modules in memory",
}
"""Modules that parse files → what they read."""
NO_FILES = {
    "library.py": "plain values out of Python objects",
    "hardware/speed.py": "what a process of its own prints",
    "data/documents/worker.py": "the requests of the process that started it",
    "data/documents/reading.py": "the answers of the process that it started",
    "serve/contract.py": "requests",
    "serve/completions.py": "requests",
    "serve/conversation.py": "requests",
    "training/rl/tinker_client.py": "what a server trained",
}
"""Modules that parse something else → what."""
CALLS = {
    "json.load", "json.loads", "json.JSONDecoder", "gzip.open", "tarfile.open", "zipfile.ZipFile", "sqlite3.connect",
    "numpy.load", "numpy.fromfile", "numpy.memmap", "numpy.loadtxt", "numpy.genfromtxt", "torch.load", "torch.jit.load",
    "csv.reader", "csv.DictReader", "tomllib.load", "tomllib.loads", "configparser.ConfigParser", "ast.literal_eval",
    "yaml.safe_load", "yaml.safe_load_all", "yaml.SafeLoader",
    "pyarrow.parquet.ParquetFile", "pyarrow.parquet.read_table", "safetensors.safe_open",
    "safetensors.torch.load_file", "sentence_transformers.SentenceTransformer", "sentence_transformers.CrossEncoder",
}  # fmt: skip
METHODS = {"from_pretrained", "from_file"}
"""Of classes of libraries."""


def parsing(path: Path) -> Iterator[tuple[int, str]]:
    """(line, what) of everything in a file that parses."""
    known = imported_names(path)
    called = {id(node.func) for node in nodes(path) if isinstance(node, ast.Call)}
    for node in nodes(path):
        if isinstance(node, ast.Attribute | ast.Name):
            name = dotted(node, known)
            # A class in an annotation reads nothing; a function that is handed on does.
            makes = id(node) in called or not name.rpartition(".")[2][:1].isupper()
            method = node.attr if isinstance(node, ast.Attribute) else ""
            if (name in CALLS and makes) or method in METHODS:
                yield node.lineno, name or method


def test_no_file_is_parsed_outside_of_the_readers() -> None:
    found = {
        f"{name}, line {line}: {what}; read it through coseek.core.files or coseek.data.array_file"
        for path in sorted(PACKAGE.rglob("*.py"))
        if (name := str(path.relative_to(PACKAGE))) not in READERS | NO_FILES
        for line, what in parsing(path)
    }
    assert not found


def test_every_module_that_is_called_a_reader_still_parses() -> None:
    assert not {name for name in READERS | NO_FILES if not list(parsing(PACKAGE / name))} - {"core/strict_yaml.py"}


@pytest.mark.parametrize(
    "source",
    [
        "import json\njson.loads('1')",
        "import json as j\nrows = map(j.loads, [])",
        "from json import loads\nloads('1')",
        "import numpy as np\narrays = map(np.load, [])",
        "import torch\ntorch.load('x', weights_only=True)",
        "import yaml\nyaml.safe_load('x')",
        "from pyarrow.parquet import ParquetFile\nParquetFile('x')",
        "AutoModel.from_pretrained('x')",
        "import gzip\ngzip.open('x')",
    ],
)
def test_each_way_to_parse_is_noticed(source: str, tmp_path: Path) -> None:
    (tmp_path / "one.py").write_text(source, encoding="utf-8")
    assert list(parsing(tmp_path / "one.py"))
