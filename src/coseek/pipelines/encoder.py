"""Train a retriever: labels, or synthetic labels of throw-away worlds → an encoder folder and its retrieval metrics.

    OUT/recipe.yaml      the recipe, versions and commit
    OUT/start            the untrained encoder, where one is made; of token vectors OUT/start-tokens, of word weights
                         OUT/start-sparse
    OUT/checkpoints      optimizer and data state
    OUT/metrics.jsonl    one line every few updates, one for each evaluation
    OUT/encoder          the trained encoder: a sentence-transformers folder with its `coseek.yaml`
    OUT/table.md, .json  retrieval metrics on held-out turns, with those of BM25 and the untrained encoder
    …                    for labels from a data set: see `retriever_data`

A part whose result exists is skipped, so a stopped run resumes.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from shlex import quote
from typing import ClassVar, NamedTuple, cast

import torch
from sentence_transformers.base.model import BaseModel
from sentence_transformers.sentence_transformer.modules import Pooling
from torch import nn
from transformers import set_seed

from coseek.core.errors import DataError, RunError
from coseek.core.files import JsonObject, atomic_folder, let_all_read, read_json, write_json
from coseek.core.fingerprint import file_digest, fingerprint
from coseek.core.progress import waiting_stops
from coseek.core.settings import dump_settings
from coseek.data.digests import Identities
from coseek.data.passage import Corpus, Passage
from coseek.hardware.device import idle_devices
from coseek.hardware.placement import Use, precision_of
from coseek.hub.card import ModelKind
from coseek.labels.label_folder import LabelFolder
from coseek.labels.label_set import LabelSet
from coseek.measure.table import Outcome, PairedClaim, Table, outcomes, scores_json
from coseek.models.lora import merge_adapters
from coseek.models.pretrained import quiet
from coseek.pipelines.agent_check import check_retriever_recipe
from coseek.pipelines.retriever_data import RetrieverData, question_claims
from coseek.pipelines.run_record import TrainingRun, data_set_identities, threads_and_trackers, write_tables
from coseek.retrieval.index import corpus_path
from coseek.retrieval.query import Query
from coseek.retrieval.retrievers.late_interaction import load_token_encoder
from coseek.retrieval.retrievers.sparse import load_sparse_encoder
from coseek.retrieval.vectors.embedding_retriever import EmbeddingSettings, QueryEncoder
from coseek.retrieval.vectors.encoder import (
    EncoderCard,
    check_prompts,
    check_retriever_of,
    encoder_folder,
    load_encoder,
    most_read,
    retriever_of,
)
from coseek.training.encoder.batch import Collator, FeatureBuilder, UpdateCollator
from coseek.training.encoder.evaluation import (
    BEFORE,
    BM25,
    HYBRID,
    ORACLE,
    TRAINED,
    EncoderEvaluator,
    EvaluationResult,
    HeldOut,
    claims,
    results_json,
    results_table,
)
from coseek.training.encoder.examples import ExampleOrder, TrainingExample, read_labels, split_by_question
from coseek.training.encoder.laptop_encoder import make_laptop_encoder, make_sparse_encoder, make_token_encoder
from coseek.training.encoder.loop import (
    CheckpointNotes,
    EncoderTrainer,
    SaveOnStop,
    arguments,
    last_checkpoint,
    optimizer_of,
)
from coseek.training.encoder.loss import RetrieverObjective
from coseek.training.encoder.recipe import RetrieverRecipe, synthetic_labels
from coseek.training.learner.data_order import derive_seed
from coseek.training.learner.learner import checkpoint_activations, untied
from coseek.training.learner.policy import attach
from coseek.training.tracker import MetricsLog

UNTRAINED = {"late-interaction": "start-tokens", "sparse": "start-sparse"}
ABOUT = {
    "start": "A text encoder for search with random weights, not trained yet.",
    "encoder": "A text encoder for search, trained by coseek.",
}
LIMITS = (
    "The figures hold for held-out turns of the same labels or worlds; other text, languages and corpora were not "
    "measured. Queries are written by the view above and are cut, as passages are, at these lengths in tokens."
)


class EncoderData(NamedTuple):
    """Label sets for training and for evaluation."""

    train: list[LabelSet]
    held_out: HeldOut | None


class RetrieverTraining(TrainingRun[RetrieverRecipe]):
    """The training of one encoder."""

    kept = ""
    """The searcher that the verdict recommends; empty until there is a verdict."""
    about: ClassVar[Mapping[str, str]] = ABOUT
    """Model → a sentence for its card."""
    model_kind: ModelKind = "encoder"
    """The kind of model on its card."""

    def identities(self) -> Identities:
        recipe, corpus = self.recipe, self.recipe.held_out.corpus
        digests = {f"labels {name}": file_digest(LabelFolder(Path(name)).sets_path) for name in recipe.labels}
        if recipe.encoder is not None:
            digests["encoder"] = fingerprint(encoder_folder(recipe.encoder))
        if recipe.data is not None:
            digests |= data_set_identities("data.folder", recipe.data.folder)
        if corpus is not None:
            digests["held_out.corpus"] = file_digest(corpus_path(Path(corpus)))
        return digests

    def check(self) -> None:
        """Refuse unusable trackers, labels, encoder or corpus, before anything is written."""
        check_retriever_recipe(self.recipe)
        read_labels(self.recipe.labels)

    @property
    def encoder_folder(self) -> Path:
        return self.folder / "encoder"

    @cached_property
    def start_folder(self) -> Path:
        """The encoder that training starts from."""
        start, kind = self._given_folder, self.recipe.kind
        check_retriever_of(start, *dict.fromkeys(("dense", kind)))
        if retriever_of(start) == kind:
            if kind == "late-interaction" and "token_dimension" in self.recipe.model_fields_set:
                self.progress.warn(f"token_dimension is not used: {start} has token vectors already")
            return start
        folder = self.folder / UNTRAINED[kind]
        if not folder.exists():
            seed, trust = self.recipe.seed, self.recipe.trust_remote_code
            if kind == "sparse":
                make_sparse_encoder(start, folder, seed, trust=trust)
            else:
                make_token_encoder(start, self.recipe.token_dimension, folder, seed, trust=trust)
            self._write_card(folder, "start")
        return folder

    @cached_property
    def _given_folder(self) -> Path:
        """The encoder that the recipe names; made here where it names none."""
        if self.recipe.encoder is not None:
            return encoder_folder(self.recipe.encoder)
        folder = self.folder / "start"
        if not folder.exists():
            make_laptop_encoder(self.recipe.laptop, self._tokenizer_texts(), folder, self.recipe.seed)
            self._write_card(folder, "start")
        return folder

    def _tokenizer_texts(self) -> list[str]:
        """The texts that a new tokenizer is trained on."""
        if self.recipe.synthetic is not None:
            return [*synthetic_labels().texts(self.recipe.synthetic, self.recipe.seed)]
        labels = read_labels(self.recipe.labels) if self.data is None else self.material.train
        pairs = ((label.question, candidate.passage) for label in labels for candidate in label.candidates)
        return [text for query, passage in pairs for text in (passage.title, passage.text, query.question)]

    @cached_property
    def data(self) -> RetrieverData | None:
        """The data set that the labels are made from, if there is one."""
        return None if self.recipe.data is None else RetrieverData(self.recipe, self.folder, self.progress)

    @cached_property
    def card(self) -> EncoderCard:
        """The card of the trained encoder: prompts, pooling, view and token limits."""
        start, recipe = EncoderCard.of(self.start_folder), self.recipe
        names = ("query_prompt", "passage_prompt", "pooling", "query_tokens", "passage_tokens")
        changes = {name: value for name in names if (value := getattr(recipe, name)) is not None}
        check_prompts(self.start_folder, changes)
        limit = most_read(self.start_folder)
        for name in ("query_tokens", "passage_tokens"):
            if limit is not None and changes.get(name, 0) > limit:
                self.progress.warn(f"{name} is {limit} and not {changes[name]}: {self.start_folder.name} reads no more")
                changes[name] = limit
        return start.model_copy(update={**changes, "view": recipe.view or start.view})

    @cached_property
    def seen(self) -> Callable[[Query], str]:
        """Maps a query to the text that the encoder reads, through the card's view."""
        card = self.card
        settings = EmbeddingSettings(
            encoder=str(self.start_folder),
            view=card.view or "query",
            query_prompt=card.query_prompt,
            query_tokens=card.query_tokens,
        )
        return QueryEncoder(settings, self.start_folder, card).seen

    @cached_property
    def material(self) -> EncoderData:
        """Label sets for training and for evaluation."""
        recipe, held_out, seed = self.recipe, self.recipe.held_out, derive_seed(self.recipe.seed, "held out")
        if self.data is not None:
            return EncoderData(*self.data.labels(seed))
        if recipe.synthetic is not None:
            train: list[LabelSet] = []
            self.progress.stage("worlds", recipe.synthetic.worlds)
            for number, made in enumerate(synthetic_labels().training_labels(recipe.synthetic, recipe.seed), start=1):
                train += made
                self.progress.advance(number, f"{len(train)} labels")
            if held_out.share == 0:
                return EncoderData(train, None)
            groups, corpus = synthetic_labels().held_out_labels(recipe.synthetic, recipe.seed)
            return EncoderData(train, HeldOut.of(groups, corpus, held_out, seed))
        labels = read_labels(recipe.labels)
        split_seed = recipe.seed if held_out.seed is None else held_out.seed
        train, held_out_labels = split_by_question(labels, held_out.share, split_seed)
        if not train:
            raise DataError(f"all {len(labels)} label sets are held out; lower held_out.share, or label more turns")
        if not held_out_labels:
            return EncoderData(train, None)
        other_passages: list[Passage] = [candidate.passage for label in labels for candidate in label.candidates]
        if held_out.corpus is not None:
            other_passages = list(Corpus.load(corpus_path(Path(held_out.corpus))))
        return EncoderData(train, HeldOut.of({"held out": held_out_labels}, other_passages, held_out, seed))

    @cached_property
    def evaluator(self) -> EncoderEvaluator | None:
        held_out = self.material.held_out
        k = self.recipe.held_out.k
        return EncoderEvaluator(held_out, self.card, self.seen, k) if held_out is not None else None

    def rows(self) -> list[TrainingExample]:
        """The training examples. Examples whose query is empty under the view are dropped."""
        rows = [TrainingExample.of(label, self.seen) for label in self.material.train]
        if self.recipe.loss.kind == "kl" and not all(row.targets for row in rows):
            raise DataError("the loss `kl` needs label sets with targets (coseek label --method replug)")
        with_query = [row for row in rows if row.query.strip()]
        if self.workers.world_size > 1 and len(with_query) < self.workers.world_size:
            raise DataError(f"{len(with_query)} rows are too few for {self.workers.world_size} workers")
        if not with_query:
            raise DataError("no row has a query; there is nothing to learn")
        return with_query

    def train(self) -> None:
        """Train and save the encoder, unless it exists."""
        with threads_and_trackers(self):
            if not self.encoder_folder.exists():
                self._train()

    def _train(self) -> None:
        if not self.workers.is_main:
            self.workers.barrier()  # the first worker makes questions and the untrained encoder
        _ = self.data and self.data.dataset
        _ = self.start_folder
        if self.workers.is_main:
            self.workers.barrier()
        settings, model = self.recipe.training, self.open(self.start_folder)
        self._prepare(model)
        order = ExampleOrder(self.rows(), settings.batch_size, self.recipe.loss.negatives, self.recipe.seed)
        steps = settings.steps or order.steps(settings.epochs)
        checkpoint = last_checkpoint(self.folder / "checkpoints")
        if checkpoint is None and self.evaluator is not None and self.workers.is_main:
            # Stored, since training overwrites the weights.
            held_out = self.evaluator.held_out
            counts = f"{len(held_out.labels):,} turns over {len(held_out.pool):,} passages"
            self.progress.say(f"measuring the encoder before training: {counts}")
            results = {BEFORE: self.evaluator.evaluate(model), **self.evaluator.baselines()}
            write_json(self.folder / "before.json", {name: result.to_json() for name, result in results.items()})
        trainer = self._trainer(model, order, steps, checkpoint)
        if self.workers.world_size == 1 and (line := idle_devices(self.recipe.torch_device())):
            self.progress.say(line)
        self.progress.stage("training", steps)
        with waiting_stops() as stop:
            trainer.add_callback(saving := SaveOnStop(stop, self.workers))
            trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint is not None else None)
            if saving.stopped:
                stop.act()
            if self.workers.is_main:
                self._save(model)
            self.workers.barrier()

    def open(self, folder: Path) -> BaseModel:
        """Open an encoder on the training device in float32, with the recipe's pooling."""
        if self.recipe.kind == "sparse":
            return load_sparse_encoder(folder, self.recipe, "float32", trust=self.recipe.trust_remote_code)
        if self.recipe.kind == "late-interaction":
            return load_token_encoder(folder, self.recipe, "float32", trust=self.recipe.trust_remote_code)
        model = load_encoder(folder, self.recipe, "float32", trust=self.recipe.trust_remote_code)
        for position, module in enumerate(model):
            if isinstance(module, Pooling) and self.recipe.pooling not in (None, module.pooling_mode):
                model[position] = Pooling(module.embedding_dimension, self.recipe.pooling, module.include_prompt)
        return model

    def _prepare(self, model: BaseModel) -> None:
        """Attach adapters, set dropout and gradient checkpointing."""
        settings = self.recipe.training
        body: nn.Module = model[0]
        if settings.gradient_checkpointing:
            checkpoint_activations(model)
        if settings.lora is not None:
            attach(body, settings.lora)
        if settings.dropout is not None:
            for module in model.modules():
                if isinstance(module, nn.Dropout):
                    module.p = settings.dropout

    def _trainer(self, model: BaseModel, order: ExampleOrder, steps: int, checkpoint: Path | None) -> EncoderTrainer:
        recipe, settings, notes = self.recipe, self.recipe.training, CheckpointNotes.of(checkpoint)
        evaluator = self.evaluator
        set_seed(recipe.seed)
        return EncoderTrainer(
            model=model,
            args=arguments(self.folder / "checkpoints", recipe, steps, evaluates=evaluator is not None),
            objective=self._objective(model, notes),
            order=order,
            collator=self._collator(model),
            optimizer=optimizer_of(model, settings, steps),
            evaluator=evaluator,
            metrics=MetricsLog(self.folder / "metrics.jsonl", notes.metrics_bytes) if self.workers.is_main else None,
            progress=self.progress,
        )

    def _collator(self, model: BaseModel) -> UpdateCollator:
        return Collator(FeatureBuilder(model, self.card), self.recipe.loss, self.workers)

    objective: type[RetrieverObjective] = RetrieverObjective
    """The loss."""

    def _objective(self, model: BaseModel, notes: CheckpointNotes) -> RetrieverObjective:
        settings = self.recipe.training
        objective = self.objective(
            model,
            self.recipe.loss,
            micro_batch_tokens=settings.micro_batch_tokens,
            cached=settings.cached,
            normalise=self.card.normalise,
            bfloat16=precision_of(settings.precision, Use.TRAINING, device=self.recipe.device) == "bfloat16",
            gradient_checkpointing=settings.gradient_checkpointing,
            workers=self.workers,
        )
        objective.sums |= notes.sums
        return objective

    def _save(self, model: BaseModel) -> None:
        """Write the encoder folder atomically. Raises `RunError` for weights that are not finite."""
        merge_adapters(model)
        if share := self.recipe.training.start_share:  # (1 − share) · trained + share · start
            start = self.open(self.start_folder).state_dict()
            with torch.no_grad():
                state = model.state_dict(keep_vars=True)
                for name in untied(state):
                    if (weight := state[name]).is_floating_point():
                        weight.lerp_(start[name], share)
        if not all(bool(torch.isfinite(weight).all()) for weight in model.state_dict().values()):
            raise RunError("the trained weights are not finite; start again with a lower learning rate")
        model.max_seq_length = self.longest

        def fill(folder: Path) -> None:
            with quiet():
                model.save(str(folder), create_model_card=False)
            let_all_read(folder)
            self.card.save(folder)
            self._write_card(folder, "encoder")

        atomic_folder(self.encoder_folder, fill)

    @property
    def longest(self) -> int:
        """Tokens of the longest input."""
        return max(self.card.query_tokens, self.card.passage_tokens)

    def _write_card(self, folder: Path, name: str, table: Table | None = None) -> None:
        """Write the model card of the encoder `name`, with the table of figures once there is one."""
        card = dump_settings(self.card_of(folder))
        facts = {"recipe": self.recipe.about, **{setting: str(value) for setting, value in card.items() if value}}
        command, start = "retriever recipe.yaml", self.recipe.encoder
        kind, description = self.model_kind, self.about[name]
        self.model_card(kind, command, name, description, LIMITS, start, facts, table=table).write(folder)

    def card_of(self, folder: Path) -> EncoderCard:
        """The card in a model's folder."""
        return EncoderCard.of(folder)

    def held_out_metrics(self, encoder: Path) -> dict[str, float]:
        """Metric → mean of an encoder over held-out turns; empty if nothing is held out."""
        if self.evaluator is None:
            return {}
        return {name.removeprefix("held/"): value for name, value in self.evaluator(self.open(encoder)).items()}

    def results(self) -> Table | None:
        """Write `table.md` and `table.json`. Returns the table of whole questions if a data set has some, else that of
        held-out turns; `None` without either."""
        evaluator, tables = self.evaluator, dict[str, Table]()
        values: JsonObject = {}
        if evaluator is not None:
            rows = cast(dict[str, JsonObject], read_json(self.folder / "before.json"))
            results = {name: EvaluationResult.from_json(row) for name, row in rows.items()}
            results[TRAINED] = evaluator.evaluate(self.open(self.encoder_folder))
            if self.data is not None:
                results[HYBRID] = evaluator.hybrid(self.encoder_folder)
            ordered = {name: results[name] for name in (BM25, BEFORE, TRAINED, HYBRID, ORACLE) if name in results}
            values = results_json(ordered, evaluator.held_out, self.recipe)
            self._judge(claims(ordered, self.recipe.seed))
            tables["Held-out turns"] = results_table(ordered, evaluator.held_out, self.recipe)
        if self.data is not None:
            by_set = self.data.tables(self.start_folder, self.encoder_folder)
            values["questions"] = {name: scores_json(scores) for name, (_, scores) in by_set.items()}
            if by_set:  # whole questions count more than held-out turns
                self._judge([claim for name, (_, scores) in by_set.items() for claim in question_claims(scores, name)])
            tables = {f"Questions: {name}": table for name, (table, _) in by_set.items()} | tables
        if not tables:
            return None
        first = next(iter(tables.values()))
        self._write_card(self.encoder_folder, "encoder", first)
        blocks = [table.markdown() for table in tables.values()]
        if len(tables) > 1:
            blocks = [f"## {name}\n\n{block}" for name, block in zip(tables, blocks, strict=True)]
        write_tables(self.folder, "# A retriever\n\n" + "\n".join(blocks), values)
        return first

    def _judge(self, claims: Sequence[PairedClaim]) -> None:
        """Choose the searcher to recommend: hybrid, trained encoder or BM25; the initial encoder if training made it
        worse."""
        claim_outcomes = zip(claims, outcomes(claims), strict=True)
        lost_pairs = {(claim.run, claim.against) for claim, outcome in claim_outcomes if outcome is Outcome.WORSE}
        if (TRAINED, BEFORE) in lost_pairs:
            self.kept = BEFORE
        elif self.data is not None:
            worse = {run for run, _ in lost_pairs}
            self.kept = next((name for name in (HYBRID, TRAINED) if name not in worse), BM25)

    @property
    def next_command(self) -> str:
        """The command that uses the recommended searcher."""
        indexes = {HYBRID: "hybrid.yaml", TRAINED: "index/trained", BM25: "index/bm25"}
        searcher = self.kept or (TRAINED if self.data is None else HYBRID)
        if self.data is not None and searcher in indexes:
            return f"coseek ask 'YOUR QUESTION' --retriever {quote(str(self.folder / indexes[searcher]))}"
        encoder = self.start_folder if searcher == BEFORE else self.encoder_folder
        return f"coseek index DATA --retriever {self.recipe.kind} --encoder {quote(str(encoder))} --out INDEX"
