"""A user's folder with a small real file of every kind that coseek reads, and the commands that read each of them."""

import gzip
import json
import mailbox
import os
import shutil
import tarfile
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from email.message import EmailMessage
from pathlib import Path

from tests.retrieval.tiny_encoder import make_encoder

from coseek.cli.main import main
from coseek.core.files import JsonObject, read_yaml, write_json, write_jsonl, write_yaml
from coseek.world.settings import WorldSettings
from coseek.world.world import make_world

OUT = "../out"
"""Where commands write, beside the user's folder."""
Words = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Kind:
    """Files of one kind, and the commands that read them."""

    name: str
    files: tuple[str, ...]
    commands: tuple[Words, ...]
    writes: tuple[str, ...] = ()
    """Folders that a command may change when it accepts its input."""


def _words(*texts: str) -> tuple[Words, ...]:
    return tuple(tuple(text.split()) for text in texts)


RUN = f"run set --split test --count 2 --retriever bm25 --out {OUT}/run limits.max_turns=2 limits.max_turn_tokens=16"
ASK = "ask Who? --retriever bm25 max_turns=2 max_turn_tokens=16"
LABEL = f"label run --method gold --out {OUT}/labels"
GENERATOR = (
    "start=null",
    "worlds=1",
    "world={size: tiny, train: 8, dev: 0, test: 0}",
    "held_out={size: tiny, train: 0, dev: 4, test: 4, seed: 8}",
    "laptop={hidden: 16, heads: 2, kv_heads: 1, feed_forward: 16, vocabulary: 400}",
    "sft={steps: 2, repeat_steps: 1, varied_steps: 1, rounds: 1, tokens_per_step: 400, evaluate_every: 1}",
    "max_answer_tokens=4",
    "threads=1",
    "table={dev_questions: 2, questions: 2}",
)
"""Settings of a generator that is trained in seconds."""
TRAINED = "training"
"""The folder of that generator."""
_ROWS = ("lines.jsonl", "commas.csv", "columns.parquet")
"""The same questions in three kinds of file."""
ENCODER_TRAINING = "train retriever encoder-recipe.yaml --labels labels"

KINDS = (
    Kind(
        "questions",
        ("set/questions.test.jsonl",),
        _words(
            "measure set bm25 --split test",
            f"{RUN} --agent rules",
            "audit corpus set",
            "push set me/set --hub hub --force",
            f"{RUN} --agent rules --samples 2",
        ),
        ("hub",),
    ),
    Kind(
        "corpus",
        ("set/corpus.jsonl",),
        _words(
            f"index set --out {OUT}/index",
            "audit corpus set",
            "search bm25 who",
            "index bm25 --verify",
            "index set --out bm25 --update",
            f"data synthesize set count=2 dev=0.2 test=0.2 --out {OUT}/made",
        ),
        ("bm25",),
    ),
    Kind("compressed corpus", ("packed.jsonl.gz",), _words(f"index packed.jsonl.gz --out {OUT}/index")),
    Kind(
        "run record",
        ("run/run.yaml",),
        _words(
            "score run",
            "audit run",
            "leaderboard run",
            f"view run --out {OUT}/page.html",
            LABEL,
            f"data export run --format messages --out {OUT}/rows.jsonl",
            f"data export run --format atif --out {OUT}/atif",
            "run set --split test --count 2 --agent rules --retriever bm25 --out run --resume",
        ),
        ("run",),
    ),
    Kind(
        "trajectories",
        ("run/trajectories.jsonl",),
        _words(
            "score run",
            "audit run",
            "leaderboard run --metric f1",
            f"view run --out {OUT}/page.html",
            LABEL,
            f"{LABEL}2 --tevatron {OUT}/rows.jsonl",
            f"data export run --format messages --out {OUT}/rows.jsonl",
            f"data export run --format atif --out {OUT}/atif",
            "score run --judge set",
            "run set --split test --count 2 --agent rules --retriever bm25 --out run --resume",
        ),
        ("run",),
    ),
    Kind("grade cache", ("run/verdict.jsonl",), _words("score run --judge set", "audit run"), ("run",)),
    Kind(
        "labels",
        ("labels/*",),
        _words(
            f"view run --labels labels --out {OUT}/page.html",
            "label run --method gold --out labels --resume",
            f"{ENCODER_TRAINING} --out {OUT}/trained",
        ),
        ("labels",),
    ),
    Kind(
        "bm25 index",
        ("bm25/*",),
        _words("search bm25 who", "index bm25 --verify", "measure set bm25 --split test", f"{ASK} --agent rules"),
        ("bm25",),
    ),
    Kind("exact index", ("exact/*", "exact/vectors/*"), _words("search exact who", "index exact --verify")),
    Kind("int8 index", ("int8/*", "int8/vectors/*"), _words("search int8 who", "index int8 --verify")),
    Kind(
        "encoder folder",
        ("encoder/*", "encoder/1_Pooling/*"),
        _words(
            f"index set --retriever dense --encoder encoder --out {OUT}/index",
            "search exact who",
            "push encoder me/encoder --hub hub --force",
        ),
        ("hub",),
    ),
    Kind(
        "policy folder",
        ("policy/*",),
        _words(
            f"{RUN} --agent policy",
            f"{ASK} --agent policy",
            "score run --answer-with policy",
            "push policy me/policy --hub hub --force",
        ),
        ("hub", "run"),
    ),
    Kind(
        "retriever YAML",
        ("hybrid.yaml", "cached.yaml", "noisy.yaml"),
        _words(
            *(f"search {name}.yaml who" for name in ("hybrid", "cached", "noisy")),
            "measure set hybrid.yaml --split test",
            f"{ASK.replace('bm25', 'hybrid.yaml')} --agent rules",
        ),
        ("cache.sqlite",),
    ),
    Kind(
        "agent YAML",
        ("agent.yaml",),
        _words(f"{RUN} --agent agent.yaml", f"{ASK} --agent agent.yaml"),
    ),
    Kind(
        "protocol YAML",
        ("protocol.yaml",),
        _words(f"{RUN} --agent rules --protocol protocol.yaml", f"{ASK} --agent policy --protocol protocol.yaml"),
    ),
    Kind(
        "prompt YAML",
        ("template.yaml", "generator.yaml"),
        _words(
            f"{RUN} --agent policy --prompt-template template.yaml",
            "score run --answer-with policy --prompt generator.yaml",
        ),
        ("run",),
    ),
    Kind(
        "recipe YAML",
        ("recipe.yaml", "encoder-recipe.yaml", "together.yaml"),
        _words(
            "train agent recipe.yaml --settings",
            "train agent recipe.yaml --dry-run",
            "train retriever encoder-recipe.yaml --settings",
            f"{ENCODER_TRAINING} --out {OUT}/trained",
            "train together together.yaml --settings",
        ),
    ),
    Kind(
        "own Python part",
        ("agent.py", "reward.py", "format.py", "own.py"),
        _words(
            f"{RUN} --agent agent.py",
            "train agent recipe.yaml --dry-run",
            f"data import format.py lines.txt --out {OUT}/set",
            "search own.yaml who",
        ),
    ),
    Kind(
        "card and hub",
        ("set/README.md", "hub/model/me/policy/*", "hub/dataset/me/set/*"),
        _words(
            "push set me/set --hub hub --force",
            f"pull me/policy {OUT}/pulled --hub hub",
            f"pull me/set {OUT}/pulled --hub hub",
        ),
        ("hub", "set/README.md"),
    ),
    Kind(
        "training folder",
        (
            f"{TRAINED}/*",
            f"{TRAINED}/training/round-1/*",
            f"{TRAINED}/training/round-1/checkpoints/*",
            f"{TRAINED}/training/round-1/checkpoints/*/*",
        ),
        (
            *_words(f"view {TRAINED} --out {OUT}/page.html"),
            ("train", "generator", *GENERATOR, "--out", TRAINED, "--resume"),
        ),
        (TRAINED,),
    ),
    Kind(
        "import formats",
        (
            *("hotpot.json", "musique.jsonl", "squad.json", "qed.jsonl", *_ROWS, "flash.jsonl"),
            *("beir/corpus.jsonl", "beir/queries.jsonl", "beir/qrels/test.tsv"),
        ),
        _words(
            f"data import hotpotqa hotpot.json --out {OUT}/set",
            f"data import musique musique.jsonl --out {OUT}/set",
            f"data import squad squad.json --out {OUT}/set",
            f"data import qed qed.jsonl --out {OUT}/set",
            *(f"data import flashrag {file} flash.jsonl --out {OUT}/set" for file in _ROWS),
            f"data import beir beir --out {OUT}/set",
        ),
    ),
    Kind(
        "documents",
        tuple(f"docs/{name}" for name in ("a.md", "b.html", "c.csv", "d.json", "e.jsonl", "f.zip", "g.mbox", "h.tar")),
        _words(f"data import documents docs --out {OUT}/set"),
    ),
    Kind(
        "traces",
        ("log.jsonl", "atif/*"),
        _words(
            f"data import traces log.jsonl answers=gold --out {OUT}/run",
            f"data import traces atif --out {OUT}/run",
        ),
    ),
    Kind(
        "TREC files",
        ("qrels.txt", "found.run"),
        _words("measure set bm25 --split test --qrels qrels.txt", "measure set found.run --split test"),
    ),
    Kind(
        "cache of texts",
        ("texts.sqlite",),
        _words("score run --answer-with policy --cache texts.sqlite"),
        ("run", "texts.sqlite"),
    ),
    Kind(
        "typed values",
        ("(the command line)",),
        _words(
            f"{RUN} --agent rules limits.max_turns=VALUE",
            "train agent quickstart rl.steps=VALUE --settings",
            f"index set k1=VALUE --out {OUT}/index",
            f"data synthesize set hop_mix=VALUE --out {OUT}/made",
            f"label run --method gold negatives=VALUE --out {OUT}/labels",
            f"data import documents docs size=VALUE --out {OUT}/set",
            "search bm25 who -k VALUE",
            "measure set bm25 --metrics VALUE",
            f"world make {OUT}/world --size VALUE",
            "score run --select VALUE",
        ),
    ),
)


def make_home(home: Path) -> None:
    """Write a small real file of every kind into `home`."""
    home.mkdir(parents=True)
    os.chdir(home)
    make_world(WorldSettings(size="tiny", train=4, dev=2, test=3)).save(Path("set"))
    make_encoder(Path("encoder"))
    _indexes()
    _models()
    Path("hub").mkdir()
    (home / "set" / "README.md").write_text("---\nlicense: mit\ntags: [a, b]\n---\n# Mine\n", encoding="utf-8")
    _parts()
    _recipes()
    for command in _words(
        "run set --split test --count 2 --agent rules --retriever bm25 --out run",
        "score run --judge set",
        "label run --method gold --out labels",
        "push set me/set --hub hub",
        "push policy me/policy --hub hub",
        "measure set bm25 --split test --trec-out trec",
        "score run --answer-with policy --cache texts.sqlite",
        "data export run --format atif --out atif",
    ):
        _done(command)
    _done(("train", "generator", *GENERATOR, "--out", TRAINED))
    (verdicts,) = Path("run").glob("verdict.*.jsonl")
    # The commands look for it under its own name: a link from the short one of the table.
    (Path("run") / "verdict.jsonl").symlink_to(verdicts.name)
    shutil.copy("trec/qrels.txt", "qrels.txt")
    shutil.copy("trec/bm25.run", "found.run")
    _sources()


def _done(words: Sequence[str]) -> None:
    if (code := main(list(words))) != 0:
        raise RuntimeError(f"coseek {' '.join(words)} ended with {code}")


def _indexes() -> None:
    _done(("index", "set", "--out", "bm25"))
    for search in ("exact", "int8"):
        dense = ("--retriever", "dense", "--encoder", "encoder", f"search={search}")
        _done(("index", "set", *dense, "--out", search))
    shutil.copy("set/corpus.jsonl", "packed.jsonl")
    packed = Path("packed.jsonl").read_bytes()
    Path("packed.jsonl.gz").write_bytes(gzip.compress(packed, mtime=0))
    Path("packed.jsonl").unlink()


def _models() -> None:
    from coseek.agents.protocol import load_protocol
    from coseek.data.passage import Corpus
    from coseek.models.laptop import LaptopSettings, make_policy

    texts = [passage.contents for passage in Corpus.load(Path("set/corpus.jsonl"))]
    shape = LaptopSettings(hidden=16, heads=2, kv_heads=1, layers=("conv", "full_attention"), feed_forward=16)
    special = load_protocol("search-r1").grammar.special_tokens
    make_policy(shape.model_copy(update={"vocabulary": 400}), texts, special, Path("policy"), seed=0)


def _parts() -> None:
    from coseek.agents.prompt_template import FOLDER as TEMPLATES
    from coseek.agents.protocol import FOLDER as PROTOCOLS

    write_yaml(Path("hybrid.yaml"), {"retriever": "hybrid", "parts": ["bm25", "exact"], "weights": [0.4, 0.6]})
    write_yaml(Path("cached.yaml"), {"retriever": "cached", "over": "bm25", "path": "cache.sqlite"})
    write_yaml(Path("noisy.yaml"), {"retriever": "noisy", "over": "bm25", "noise": {"start": 0.5}})
    write_yaml(Path("agent.yaml"), {"name": "policy", "protocol": "search-r1", "temperature": 0.0})
    shutil.copy(PROTOCOLS / "search-r1.yaml", "protocol.yaml")
    shutil.copy(TEMPLATES / "default.yaml", "template.yaml")
    prompt: JsonObject = {"prompt": "{passages} {question}", "passage": "[{number}] {title} {text}", "no_passages": "-"}
    write_yaml(Path("generator.yaml"), prompt)
    Path("agent.py").write_text(
        "from coseek.agents.scripted.rules import PROMPT_TEMPLATE\nfrom coseek.agents.scripted.rules import make\n"
    )
    Path("format.py").write_text(
        "from coseek.data.imports._sources import ImportedData\nfrom coseek.data.passage import Passage\n"
        "from coseek.data.question import Question\n\n\n"
        "def read(sources):\n    lines = sources[0].read_text(encoding='utf-8').splitlines()\n"
        "    return ImportedData(tuple(Passage(line, line, line) for line in lines), (Question('q', 'Who?'),))\n"
    )
    Path("lines.txt").write_text("Ada\nBob\n")
    Path("own.py").write_text(
        "from coseek.core.settings import Settings\n\n\nclass SETTINGS(Settings):\n    over: str\n\n\n"
        "def open(settings, opening):\n    return opening.open(settings.over)\n"
    )
    write_yaml(Path("own.yaml"), {"retriever": "own.py", "over": "bm25"})
    Path("reward.py").write_text(
        "from coseek.rewards.reward import PartSettings\n\n\nclass SETTINGS(PartSettings):\n    most: int = 40\n\n\n"
        "def reward(trajectory, settings):\n    return 1.0\n"
    )


def _recipes() -> None:
    recipe: JsonObject = {
        "extends": "from-nothing",
        "about": "a small one",
        "data": {
            "world": {"seed": 3, "size": "tiny", "train": 8, "dev": 4, "test": 4},
            "unseen": {"seed": 4, "size": "tiny", "train": 0, "dev": 0, "test": 4},
        },
        "policy": {"folder": "policy"},
        "reward": {"exact_match": 1.0, "reward.py": {"weight": 0.1}},
        "rl": {"steps": 1, "questions_per_step": 2, "group_size": 2},
    }
    write_yaml(Path("recipe.yaml"), recipe)
    training: JsonObject = {"steps": 1, "batch_size": 2}
    encoder: JsonObject = {"encoder": "encoder", "query_tokens": 16, "passage_tokens": 16, "training": training}
    write_yaml(Path("encoder-recipe.yaml"), {**encoder, "labels": ["labels"], "loss": {"negatives": 1}})
    together = read_yaml(Path(__file__).parent.parent / "src/coseek/recipes/together/laptop.yaml", "recipe")
    write_yaml(Path("together.yaml"), together)


def _sources() -> None:
    """Files of published data sets, documents, and logs."""
    from tests.data.test_imports import HOTPOT, MUSIQUE, QED, SQUAD

    write_json(Path("hotpot.json"), HOTPOT)
    write_json(Path("squad.json"), SQUAD)
    write_jsonl(Path("musique.jsonl"), (row for row in MUSIQUE if isinstance(row, dict)))
    assert isinstance(QED, dict)
    write_jsonl(Path("qed.jsonl"), [QED])
    rows: list[JsonObject] = [
        {"id": f"q{number}", "question": f"Who is {number}?", "golden_answers": ["Ada", "Bob"]} for number in range(3)
    ]
    write_jsonl(Path("lines.jsonl"), rows)
    write_jsonl(Path("flash.jsonl"), [{"id": "d1", "contents": '"Ada"\nAda knew Bob.'}])
    Path("commas.csv").write_text("id,question,golden_answers\na,Who?,\"['Ada']\"\nb,Where?,\"['Bob']\"\n")
    import pyarrow  # type: ignore[import-untyped]
    import pyarrow.parquet  # type: ignore[import-untyped]

    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), "columns.parquet")
    Path("beir/qrels").mkdir(parents=True)
    write_jsonl(Path("beir/corpus.jsonl"), [{"_id": "d1", "title": "Ada", "text": "Ada lived."}])
    write_jsonl(Path("beir/queries.jsonl"), [{"_id": "q1", "text": "Who lived?"}])
    Path("beir/qrels/test.tsv").write_text("query-id\tcorpus-id\tscore\nq1\td1\t1\n")
    messages = [{"role": "user", "content": "Who?"}, {"role": "assistant", "content": "Ada"}]
    Path("log.jsonl").write_text("".join(json.dumps({"messages": messages, "gold": "Ada"}) + "\n" for _ in range(3)))
    _documents()


def _documents() -> None:
    docs = Path("docs")
    docs.mkdir()
    (docs / "a.md").write_text("---\ntitle: Ada\ndate: 2020-01-01\n---\n# Ada\nAda lived.\n")
    (docs / "b.html").write_text("<html><head><title>Bob</title></head><body><p>Bob knew Ada.</p></body></html>")
    (docs / "c.csv").write_text("name,born\nAda,1815\nBob,1820\n")
    write_json(docs / "d.json", {"title": "Cy", "text": "Cy is a cat.", "born": 1990})
    write_jsonl(docs / "e.jsonl", [{"title": "Dee", "text": "Dee is a dog."}])
    with zipfile.ZipFile(docs / "f.zip", "w") as packed:
        packed.write(docs / "a.md", "inner/a.md")
    with tarfile.open(docs / "h.tar", "w") as joined:
        joined.add(docs / "c.csv", "inner/c.csv")
    mails = mailbox.mbox(docs / "g.mbox")
    mail = EmailMessage()
    mail["From"], mail["Subject"] = "ada@example.org", "Engines"
    mail.set_content("The engine weaves patterns.")
    mails.add(mail)
    mails.close()


def files_of(kind: Kind, home: Path) -> Iterator[Path]:
    """The files of a kind, in order."""
    for pattern in kind.files:
        if pattern.startswith("("):
            yield Path(pattern)
        yield from (path for path in sorted(home.glob(pattern)) if path.is_file() and path.name != ".lock")
