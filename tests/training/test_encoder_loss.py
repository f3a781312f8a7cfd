"""The losses of a retriever: the formulas, who counts as a negative, and that memory is no matter of the result."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import cast

import pytest
import torch
from hypothesis import given, settings, strategies as st
from sentence_transformers import MultiVectorEncoder, SentenceTransformer, SparseEncoder
from tests.examples_drawn import at_most
from tests.retrieval.tiny_encoder import make_encoder
from tests.training.tiny_labels import label

from coseek.core.errors import RunError
from coseek.retrieval.vectors.encoder import EncoderCard
from coseek.training.encoder.batch import Collator, EncoderBatch, FeatureBuilder
from coseek.training.encoder.examples import ExamplePassage, TrainingExample
from coseek.training.encoder.laptop_encoder import make_sparse_encoder, make_token_encoder
from coseek.training.encoder.loss import (
    Features,
    RetrieverObjective,
    Target,
    contrastive,
    divergence,
    similarities,
    stacked,
)
from coseek.training.encoder.recipe import RetrieverLoss
from coseek.training.learner.learner import checkpoint_activations
from coseek.training.learner.workers import Workers


def row(positive: str, *negatives: str, question: str = "", query: str = "") -> TrainingExample:
    """An example of passages `text` or `id|text`. By default each row has its own question, which is its query."""

    def passage(text: str) -> ExamplePassage:
        ident, bar, rest = text.partition("|")
        return ExamplePassage(ident, rest if bar else text)

    question = question or positive
    return TrainingExample(question, query or question, passage(positive), tuple(passage(text) for text in negatives))


def negatives_of(batch: EncoderBatch, number: int) -> list[str]:
    """The texts of a row's negatives, by its mask; as often as they are counted."""
    slots = [slot for slot in batch.allowed_BS[number].nonzero().flatten().tolist() if slot != batch.positive_B[number]]
    return sorted(batch.passages[int(batch.passage_S[slot])] for slot in slots)


def test_other_rows_passages_are_negatives_and_no_positive_of_the_row_is() -> None:
    batch = EncoderBatch.of([row("a", "x", "y"), row("b", "x", "a")], RetrieverLoss())
    assert negatives_of(batch, 0) == ["b", "x", "x", "y"]
    assert negatives_of(batch, 1) == ["a", "a", "x", "x", "y"]
    assert len(batch.passages) == 4  # each different text is encoded once


def test_negatives_may_be_the_labels_own_alone_or_every_other_passage() -> None:
    own = EncoderBatch.of([row("a", "x"), row("b", "y")], RetrieverLoss(in_batch=False))
    assert [negatives_of(own, number) for number in range(2)] == [["x"], ["y"]]
    rows = [row("a", "x", query="q"), row("b", "a", query="q"), row("c", "y", question="b")]
    batch = EncoderBatch.of(rows, RetrieverLoss(in_batch_rows=2, mask_false_negatives=False))
    assert [negatives_of(batch, number) for number in range(3)] == [["a", "b", "x"], ["a", "a", "x"], ["y"]]


TEXTS = st.sampled_from([f"{ident}|{text}" for ident in "12" for text in "abc"] + list("defgh"))
ROWS = st.lists(
    st.builds(
        lambda passages, query, question: row(passages[0], *passages[1:], question=question, query=query),
        st.lists(TEXTS, min_size=1, max_size=4, unique=True),
        st.sampled_from("tuvw"),
        st.sampled_from("QRS"),
    ),
    min_size=1,
    max_size=6,
)


def counts(rows: Sequence[TrainingExample], number: int) -> list[str]:
    """The rules, written slot by slot: texts of a row's negatives."""
    mine, kept = rows[number], []
    for other in rows:
        for index, passage in enumerate((other.positive, *other.negatives)):
            if other is mine and index == 0:
                continue  # the row's own positive
            if other is not mine and other.question == mine.question:
                continue
            right = False
            for kin in rows:
                if kin.question == mine.question or kin.query == mine.query:
                    right = right or passage.id == kin.positive.id or passage.text == kin.positive.text
            if not right:
                kept.append(passage.text)
    return sorted(kept)


@given(ROWS, st.randoms(use_true_random=False))
@settings(max_examples=at_most(60))
def test_the_loss_is_the_papers_sum_over_what_counts(rows: list[TrainingExample], rng: object) -> None:
    batch = EncoderBatch.of(rows, RetrieverLoss())
    assert [negatives_of(batch, number) for number in range(len(rows))] == [
        counts(rows, number) for number in range(len(rows))
    ]
    similar = {text: 0.3 * number for number, text in enumerate(sorted(batch.passages))}
    scores_S = torch.tensor([similar[batch.passages[index]] for index in batch.passage_S.tolist()])
    losses = contrastive(scores_S.expand(len(rows), -1), batch.allowed_BS, batch.positive_B)
    for number, loss in enumerate(losses.tolist()):
        right = math.exp(similar[rows[number].positive.text])
        total = right + sum(math.exp(similar[text]) for text in counts(rows, number))
        assert loss == pytest.approx(-math.log(right / total), abs=1e-5)


def test_two_workers_mask_alike(tmp_path: Path) -> None:
    """Each encodes a share of the texts; who is whose negative follows from the rows of both."""
    folder = make_encoder(tmp_path / "encoder")
    model = SentenceTransformer(str(folder), device="cpu", local_files_only=True)
    rows = [row("ba", "be", question="Q", query="bi"), row("bo", question="Q", query="bu"), row("da", "bo", query="bi")]
    builder = FeatureBuilder(model, EncoderCard.of(folder))
    fed = [Collator(builder, RetrieverLoss(), Workers(rank, 2))(rows) for rank in range(2)]
    first, other = (cast(Target, each["label"]) for each in fed)
    assert all(torch.equal(first[name], other[name]) for name in first)
    shares = [cast(torch.Tensor, each["passage_input_ids"]).tolist() for each in fed]
    assert shares[0] != shares[1]


def test_a_worker_without_a_query_of_its_own_encodes_one_that_no_score_reads(tmp_path: Path) -> None:
    folder = make_encoder(tmp_path / "encoder")
    builder = FeatureBuilder(SentenceTransformer(str(folder), device="cpu"), EncoderCard.of(folder))
    rows = [row(f"ba {number}", "be", query="ba" if number else "be be") for number in range(4)]
    whole = EncoderBatch.of(rows, RetrieverLoss())
    assert whole.queries == ("be be", "ba")
    shares = [Collator(builder, RetrieverLoss(), Workers(rank, 4))(rows) for rank in range(4)]
    ids = [cast(torch.Tensor, share["query_input_ids"]).tolist() for share in shares]
    assert [len(row) for row in ids] == [1, 1, 1, 1] and ids[1] == ids[2] == ids[3] != ids[0]
    assert {int(cast(Target, share["label"])["query_B"].max()) for share in shares} == {1}


def test_masked_slots_get_no_gradient() -> None:
    scores_BS = torch.tensor([[1.0, 90.0, 0.5]], requires_grad=True)
    loss_B = contrastive(scores_BS, torch.tensor([[True, False, True]]), torch.tensor([0]))
    loss_B.sum().backward()
    assert scores_BS.grad is not None and scores_BS.grad[0, 1] == 0
    assert loss_B.item() == pytest.approx(math.log(1 + math.exp(-0.5)))


def test_the_divergence_is_that_of_replug_and_is_0_at_the_targets() -> None:
    scores_BS = torch.tensor([[1.0, 2.0, 70.0]], requires_grad=True)
    allowed_BS = torch.tensor([[True, True, False]])
    p = [1 / (1 + math.e), math.e / (1 + math.e)]
    loss_B = divergence(scores_BS, allowed_BS, torch.tensor([[0.5, 0.5, 0.0]]))
    assert loss_B.item() == pytest.approx(sum(share * math.log(share / 0.5) for share in p))
    level_B = divergence(scores_BS, allowed_BS, torch.tensor([[*p, 0.0]]))
    level_B.sum().backward()
    assert level_B.item() == pytest.approx(0.0, abs=1e-6)
    assert scores_BS.grad is not None and scores_BS.grad.abs().max() < 1e-6
    one_sided_B = divergence(torch.zeros(1, 2), torch.ones(1, 2, dtype=torch.bool), torch.tensor([[1.0, 0.0]]))
    assert 1.0 < one_sided_B.item() < 20.0  # a target of 0 costs much, and not infinitely


Gradients = dict[str, torch.Tensor]


def gradients(
    folder: Path,
    loss: RetrieverLoss,
    *,
    tokens: int = 60,
    cached: bool = True,
    dropout: float = 0.0,
    gradient_checkpointing: bool = False,
    bfloat16: bool = False,
    numbers: Sequence[int] = range(10),
) -> Gradients:
    """Gradients of one batch of hand-made rows."""
    kind = SentenceTransformer if EncoderCard.of(folder).similarity != "maxsim" else MultiVectorEncoder
    model = kind(str(folder), device="cpu", local_files_only=True)
    if gradient_checkpointing:
        checkpoint_activations(model)
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = dropout
    kl = loss.kind == "kl"
    rows = [TrainingExample.of(label(number, targets=kl), lambda query: query.text) for number in numbers]
    builder = FeatureBuilder(model, EncoderCard.of(folder))
    fed = Collator(builder, loss)(rows)
    objective = RetrieverObjective(
        model, loss, micro_batch_tokens=tokens, cached=cached, normalise=True, bfloat16=bfloat16,
        gradient_checkpointing=gradient_checkpointing,
    )  # fmt: skip
    features: list[Features] = []
    for side in ("query", "passage"):
        tensors = {name.removeprefix(f"{side}_"): value for name, value in fed.items() if name.startswith(f"{side}_")}
        features.append({name: value for name, value in tensors.items() if isinstance(value, torch.Tensor)})
    model.train()
    torch.manual_seed(0)
    objective(features, cast(Target, fed["label"])).backward()
    assert objective.pop_metrics()["negatives"] > 3 or kl
    return {name: weight.grad.clone() for name, weight in model.named_parameters() if weight.grad is not None}


def gap(computed: Gradients, expected: Gradients) -> float:
    """The largest difference of two gradients, as a share of the largest entry where that is above 1."""
    assert computed.keys() == expected.keys() and len(expected) > 10
    size = max(float(gradient.abs().max()) for gradient in expected.values())
    return max(float((computed[name] - expected[name]).abs().max()) for name in expected) / max(1.0, size)


CONTRASTIVE = RetrieverLoss(temperature=0.05)


@pytest.mark.medium
@pytest.mark.parametrize("tokens", [False, True])
@pytest.mark.parametrize("loss", [CONTRASTIVE, RetrieverLoss(kind="kl", temperature=0.1)])
def test_cached_gradients_are_the_gradients(tmp_path: Path, loss: RetrieverLoss, tokens: bool) -> None:
    folder = make_encoder(tmp_path / "encoder")
    if tokens:
        make_token_encoder(folder, 8, tmp_path / "tokens", seed=0)
        folder = tmp_path / "tokens"
    whole = gradients(folder, loss, tokens=10**6)
    assert gap(gradients(folder, loss, tokens=30, cached=False), whole) < 1e-6
    assert gap(gradients(folder, loss, tokens=30), whole) < 1e-6


def test_the_loss_of_token_vectors_is_that_of_maxsim_over_the_querys_tokens() -> None:
    queries = [torch.eye(4)[:2], torch.eye(4)[[3]]]
    passages = [torch.eye(4)[[1]], torch.tensor([[0.5, -0.5, 0.5, -0.5]]), torch.eye(4)]
    parts = [stacked([vector[None] for vector in vectors]) for vectors in (queries, passages)]
    # A token that agrees with no token of a passage counts as it is: padding is no token with a product of 0.
    assert similarities(*parts).tolist() == [[0.5, 0.0, 1.0], [0.0, -0.5, 1.0]]


def test_the_flops_term_is_the_squared_mean_weight_of_every_word_of_the_batchs_own_texts(tmp_path: Path) -> None:
    make_sparse_encoder(make_encoder(tmp_path / "dense"), tmp_path / "sparse", seed=0)
    model = SparseEncoder(str(tmp_path / "sparse"), device="cpu", local_files_only=True)
    queries, passages = torch.tensor([[1.0, 0.0], [3.0, 0.0]]), torch.tensor([[0.0, 2.0], [0.0, 4.0], [9.0, 9.0]])
    labels = {
        "query_B": torch.tensor([0, 1]),
        "passage_S": torch.tensor([0, 1]),  # the third passage is a worker's spare one
        "allowed_BS": torch.eye(2, dtype=torch.bool),
        "positive_B": torch.tensor([0, 1]),
        "targets_BS": torch.zeros(2, 2),
    }
    settings = RetrieverLoss(temperature=1, flops=(0.5, 0.1))
    objective = RetrieverObjective(model, settings, micro_batch_tokens=9, cached=False, normalise=False)
    loss = objective.calculate_loss([[queries], [passages]], labels)
    assert float(loss) == pytest.approx(0.5 * 2**2 + 0.1 * 3**2)  # with one slot a row, the contrastive part is 0


def test_cached_gradients_drop_the_same_activations_twice(tmp_path: Path) -> None:
    """The second pass of the cache replays the first one's dropout: both ways draw in the same order."""
    folder = make_encoder(tmp_path / "encoder")
    apart, cached = (gradients(folder, CONTRASTIVE, tokens=30, cached=cached, dropout=0.2) for cached in (False, True))
    assert gap(cached, apart) < 1e-6


@pytest.mark.medium
@pytest.mark.parametrize(("cached", "dropout"), [(True, 0.2), (False, 0.0), (False, 0.2)])
def test_checkpointed_gradients_are_the_gradients_of_far_fewer_kept_numbers(
    tmp_path: Path, cached: bool, dropout: float
) -> None:
    folder = make_encoder(tmp_path / "encoder")
    grads, kept = [], []
    for again in (False, True):
        numbers = 0

        def count(tensor: torch.Tensor) -> torch.Tensor:
            nonlocal numbers
            numbers += 0 if isinstance(tensor, torch.nn.Parameter) else tensor.numel()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(count, lambda tensor: tensor):
            grads.append(gradients(folder, CONTRASTIVE, dropout=dropout, cached=cached, gradient_checkpointing=again))
        kept.append(numbers)
    assert gap(grads[1], grads[0]) < 1e-6
    assert kept[1] < 0.5 * kept[0]


@pytest.mark.medium
@pytest.mark.parametrize("gradient_checkpointing", [False, True])
def test_gradients_in_bfloat16_are_near_also_where_layers_are_recomputed(
    tmp_path: Path, gradient_checkpointing: bool
) -> None:
    """Attention runs in float32, but not in a layer that runs again after the forward pass."""
    folder, loss = make_encoder(tmp_path / "encoder"), RetrieverLoss(temperature=0.5)
    exact, rough = (
        gradients(folder, loss, dropout=0.2, bfloat16=bfloat16, gradient_checkpointing=gradient_checkpointing)
        for bfloat16 in (False, True)
    )
    size = max(float(gradient.norm()) for gradient in exact.values())
    assert any(not torch.equal(rough[name], gradient) for name, gradient in exact.items())
    for name, gradient in exact.items():
        assert float((rough[name] - gradient).norm()) < 0.05 * size, name


def test_rows_in_blocks_have_the_gradient_of_accumulated_batches(tmp_path: Path) -> None:
    folder, blocks = make_encoder(tmp_path / "encoder"), RetrieverLoss(temperature=0.05, in_batch_rows=4)
    together = gradients(folder, blocks, numbers=[0, 1, 2, 3, 20, 21, 22, 23])
    first, second = (gradients(folder, CONTRASTIVE, numbers=range(start, start + 4)) for start in (0, 20))
    assert gap({name: (first[name] + second[name]) / 2 for name in first}, together) < 1e-6


def test_a_loss_of_nan_stops_the_training(tmp_path: Path) -> None:
    folder = make_encoder(tmp_path / "encoder")
    model = SentenceTransformer(str(folder), device="cpu", local_files_only=True)
    objective = RetrieverObjective(model, RetrieverLoss(), micro_batch_tokens=99, cached=True, normalise=False)
    target = EncoderBatch.of([row("a", "x", query="q")], RetrieverLoss()).structure()
    with pytest.raises(RunError, match="learning rate"):
        objective.calculate_loss([[torch.full((1, 4), torch.nan)], [torch.zeros(2, 4)]], target)
