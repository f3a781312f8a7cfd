"""Cases from people, files and servers: the commands of each shared case end as its EXPECTED.md says.

Skipped if the folder of shared cases is not next to the project. `as-people-type` needs a trained quickstart.
"""

import os
import subprocess
from collections.abc import Iterator

import pytest
from tests.processes import programs
from tests.source_tree import ROOT

CASES = ROOT.parent / "shared" / "cases"
SAID: dict[str, tuple[str, ...]] = {
    "beir-dangling-qrels": ("not in the corpus: 1", "out2: 3 passages"),
    "beir-query-twice": ("line 2: the id 'q2' stands twice",),
    "beir-same-ids": ("1.000 │  1.000",),
    "chat-history": ('"content": "Orlen"', "holds a picture", "\n200\n"),
    "choices": ('"answers": ["Orlen"]', '"answers": ["Tave"]', "Choices: Veld | Orlen | Karst"),
    "error-with-200": ("Rate limit exceeded: free-models-per-day (4 tries)",),
    "hub-variants": ("out-hotpotqa: 2 passages", "out-2wiki: 1 passage,", "out-squad: 1 passage,"),
    "logs": ("Which river is Orlen on? -> Tave ['Orlen river']", "-> The Northern Sea ['sea of the Tave']"),
    "lora-folder": ("is a LoRA adapter", "merge_and_unload()", "holds a GGUF file", "llama-server"),
    "missing-tensor": ("lacks the weights of model.layers.1.mlp.up_proj.weight", "exit 2\n", "encoder"),
    "nan-advantages": ("mine returned advantages that are not finite (row 0)", "the reward 'big' gave -1e+308"),
    "nested-golds": ("questions.jsonl, line 2: 'golden_answers' holds null",),
    "prefilled-think": ("valid [1.0, 1.0]", "format [1.0, 0.2]"),
    "prompt-tail": ("In the quiz 'Question: of Sport', who won?\"", '"question": "where was mira born?"'),
    "refused-fields": ("'max_tokens' is not supported", "Judge: judge.yaml"),
    "reranker-without-head": ("no weights for its score (classifier.weight, classifier.bias)",),
    "soft-hyphen": ("Hafen\xadmeister", "Donau\xaddampf"),
    "thai": ("  1    0.964", "  1    1.095"),
    "thinking-generator": ('"answer": "Orlen", "text": "<think>', "64 tokens were used up before an answer"),
    "tool-calls-with-stop": ("without --enable-auto-tool-choice", ": 6 answers"),
    "vocabulary-too-large": ("its tokenizer has 258 tokens, and the model embeds 200",),
}
"""Case → parts of what its commands print."""
NEVER = ("src/coseek/", "nothing found")
"""A traceback of ours names our files; the cases' own scripts may end in one."""


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Where the cases find `coseek`."""
    folder = tmp_path_factory.mktemp("bin")
    with programs(folder, ("make.py",)):
        yield f"{folder}{os.pathsep}{os.environ['PATH']}"


@pytest.mark.slow
@pytest.mark.skipif(not CASES.is_dir(), reason="the shared cases are not beside the project")
@pytest.mark.parametrize("name", SAID)
def test_a_case_ends_as_expected(path: str, name: str) -> None:
    command = ["bash", str(CASES / name / "run.sh")]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "PATH": path}, check=False)
    output = done.stdout + done.stderr
    assert not [text for text in SAID[name] if text not in output], output
    assert not [text for text in NEVER if text in output], output
