"""Our own mechanisms beside the libraries that offer the same, each pair in turn in one process.

    OMP_NUM_THREADS=1 python bench/libraries.py                 # --repeats 7

Prints the library's processor time over ours: the median of the repeats, and the lowest and highest. Above 1 we are
faster. docs/explanation/own-mechanisms.md says what follows. A library that is not installed is left out, and named.
"""

import argparse
import importlib.util
import random
import statistics
import time
import warnings
from collections.abc import Callable, Iterator

import bm25s  # type: ignore[import-untyped]
import ir_measures
import numpy as np
import torch
from ir_measures import R, nDCG
from scipy.stats import bootstrap  # type: ignore[import-untyped]
from transformers import LlamaConfig, LlamaForCausalLM

from coseek.data.passage import Corpus, Passage
from coseek.measure.intervals import bootstrap_mean
from coseek.measure.rankings import ndcg, recall
from coseek.retrieval.retrievers.bm25 import Bm25
from coseek.training.trainer.lora import attach
from coseek.training.trainer.settings import LoraSettings

Work = Callable[[], object]
LAYERS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


def lora() -> Iterator[tuple[str, Work, Work]]:
    """A training step, and a pass over one token a row as sampling makes it, with adapters of rank 16."""
    from peft import LoraConfig, get_peft_model

    def model() -> LlamaForCausalLM:
        shape = LlamaConfig(
            vocab_size=2000, hidden_size=256, intermediate_size=688, num_hidden_layers=6, num_attention_heads=4
        )
        return LlamaForCausalLM(shape)

    own = model()
    attach(own, LoraSettings(rank=16, alpha=32, targets=LAYERS), own.lm_head)
    theirs = get_peft_model(model(), LoraConfig(r=16, lora_alpha=32, target_modules=list(LAYERS)))
    ids = torch.randint(2000, (8, 128))

    def step(network: torch.nn.Module) -> None:
        network(input_ids=ids, labels=ids).loss.backward()
        network.zero_grad()

    def token(network: torch.nn.Module) -> None:
        with torch.no_grad():
            for _ in range(20):
                network(input_ids=ids[:, :1])

    yield "LoRA, a training step / peft", lambda: step(own), lambda: step(theirs)
    yield "LoRA, 20 tokens of 8 rows / peft", lambda: token(own), lambda: token(theirs)


def measures() -> Iterator[tuple[str, Work, Work]]:
    """nDCG@10 and recall@5 of 200 rankings, each asked for alone, as a reward asks."""
    rng = random.Random(0)
    ids = [str(number) for number in range(50)]
    judged = [(dict.fromkeys(rng.sample(ids, 3), 1), rng.sample(ids, 20)) for _ in range(200)]

    def library() -> None:
        for gold, ranked in judged:
            rows = [ir_measures.ScoredDoc("q", ident, -rank) for rank, ident in enumerate(ranked)]
            qrels = [ir_measures.Qrel("q", ident, grade) for ident, grade in gold.items()]
            list(ir_measures.iter_calc([nDCG @ 10, R @ 5], qrels, rows))

    def own() -> None:
        for gold, ranked in judged:
            ndcg(gold, ranked, 10), recall(gold, ranked, 5)

    yield "nDCG@10 and recall@5 of one ranking / ir-measures", own, library


def intervals() -> Iterator[tuple[str, Work, Work]]:
    values = np.random.default_rng(0).random(2_000).tolist()
    yield (
        "95 % interval of a mean of 2,000, 10,000 resamples / scipy",
        lambda: bootstrap_mean(values, np.random.default_rng(0), resamples=10_000),
        lambda: bootstrap((values,), np.mean, n_resamples=10_000, method="percentile", batch=500),
    )


def lexical() -> Iterator[tuple[str, Work, Work]]:
    """An index over 20,000 passages of 60 words, from text; each side with its own tokenizer."""
    rng = random.Random(0)
    words = [f"word{int(rng.paretovariate(0.7)) % 50_000}" for _ in range(20_000 * 60)]
    texts = [" ".join(words[at : at + 60]) for at in range(0, len(words), 60)]
    corpus = Corpus([Passage(str(number), "", text) for number, text in enumerate(texts)])

    def library() -> None:
        retriever = bm25s.BM25(method="lucene")
        retriever.index(bm25s.tokenize(texts, stopwords=None, show_progress=False), show_progress=False)

    yield "BM25, build over 20,000 passages / bm25s", lambda: Bm25.over(corpus), library


PAIRS = {"peft": lora, "ir_measures": measures, "scipy": intervals, "bm25s": lexical}


def took_s(work: Work) -> float:
    began = time.process_time()
    work()
    return time.process_time() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=7)
    repeats = parser.parse_args().repeats
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    for library, pairs in PAIRS.items():
        if importlib.util.find_spec(library) is None:
            print(f"{library}: not installed, left out")
            continue
        for name, own, theirs in pairs():
            took_s(own), took_s(theirs)  # the first call of each compiles and fills caches
            ratios = sorted(took_s(theirs) / took_s(own) for _ in range(repeats))
            print(f"{name}: {statistics.median(ratios):.2f} ({ratios[0]:.2f}–{ratios[-1]:.2f})")


if __name__ == "__main__":
    main()
