"""Demonstrations: trajectories in the policy's token ids, for supervised training. They come from scripted agents, or
from stored runs of any agent, filtered by reward. At the end: the policy that is trained on them.

A run that was sampled with the policy's tokenizer keeps its ids. Others are tokenised again, segment by segment; every
segment keeps its author, so that the loss masks what the environment wrote. The prompt is the recipe's own.
"""

import random
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import chain, cycle, groupby, islice
from pathlib import Path

from coseek.agents.drivers import Agent, rollout
from coseek.agents.environment import NativeTurns
from coseek.agents.episode import Episode
from coseek.agents.factory import SCRIPTED, former_protocol, open_scripted_agent
from coseek.agents.grammar import Grammar
from coseek.agents.limits import Limits
from coseek.agents.protocol import Protocol
from coseek.agents.scripted.evidence import EvidenceAgent, held_answer
from coseek.agents.scripted.gold import GoldAnswerAgent
from coseek.agents.scripted_agent import ScriptedAgent, ScriptedAgentModel
from coseek.agents.sources import holds
from coseek.core.errors import DataError
from coseek.core.plugins import find_plugin
from coseek.core.progress import Progress
from coseek.core.prompt_file import ROLE_MARK
from coseek.data.dataset import Dataset, draw
from coseek.data.maker import MadeData, question_synthesis, world_maker
from coseek.data.passage import Corpus, Passage
from coseek.data.question import KNOWN, Question
from coseek.data.run import Run
from coseek.data.trajectory import PROMPT, Author, Segment, StopReason, Trajectory
from coseek.graders.generator import ContextBudget, GeneratorSettings, context_of, load_generator_prompt
from coseek.graders.scoring import TrajectoryScorer
from coseek.models.chat import chat_frame
from coseek.models.laptop import make_policy
from coseek.models.model import Tokenizer
from coseek.models.model_folder import model_path
from coseek.models.new_tokens import add_tokens, new_tags, spelt_words
from coseek.models.tokenizer import HfTokenizer
from coseek.models.written import closing_of, ending_empty_reasoning, opened_at_end, split_opened
from coseek.pipelines.agent_recipe import EXPERT, AgentRecipe, WarmStartSettings
from coseek.pipelines.stages import correct_trajectories
from coseek.retrieval.lexical.analyzer import has_words
from coseek.retrieval.retriever import Retriever
from coseek.retrieval.retrievers.bm25 import Bm25
from coseek.rewards.reward import make_reward
from coseek.training.learner.data_order import derive_seed
from coseek.training.sft.settings import KeptRunsSettings

_END = re.compile(rf"(?:{ROLE_MARK})\s*+\Z", re.I)


def stored_demonstrations(
    folders: Sequence[str], keep: KeptRunsSettings, protocol: Protocol, tokenizer: Tokenizer, limits: Limits, seed: int
) -> list[Trajectory]:
    """The runs of these folders whose reward is high enough. Raises `DataError` if there is none, or for a run of
    another protocol."""

    def checked_trajectories() -> Iterator[Trajectory]:
        for folder in folders:
            for trajectory in Run(Path(folder)).trajectories():
                if trajectory.protocol != protocol.name:
                    raise DataError(
                        f"{folder} holds runs of the protocol {trajectory.protocol}, and the policy learns "
                        f"{protocol.name}; name runs of that protocol in warm_start.runs"
                    )
                yield trajectory

    right = correct_trajectories(checked_trajectories(), TrajectoryScorer(make_reward(keep.reward)), keep, seed)
    return [retokenised(trajectory, protocol, tokenizer, limits) for trajectory in right]


def retokenised(trajectory: Trajectory, protocol: Protocol, tokenizer: Tokenizer, limits: Limits) -> Trajectory:
    """The run with the recipe's prompt, in a tokenizer's ids. Log-probabilities of text tokenised again are 0."""
    same = all(tokenizer.decode(segment.ids) == segment.text for segment in trajectory.segments)
    if protocol.grammar.native_calls:
        return _retokenised_calls(trajectory, protocol, tokenizer, same)
    first = next((number for number, segment in enumerate(trajectory.segments) if segment.author is Author.AGENT), 0)
    former_mark = protocol.grammar.opened_mark(trajectory.segments[first - 1].text) if first else ""
    opened_mark = protocol.template.opened_mark(tokenizer)
    prompt, prompt_tail = protocol.template.prompt_ids(tokenizer, trajectory.question, protocol.file.opens_with_search)
    segments: list[Segment] = []
    for number, segment in enumerate(trajectory.segments):
        is_agent, text = segment.author is Author.AGENT, segment.text
        is_unchanged = same and (number != first or former_mark == opened_mark)
        if number == first and former_mark != opened_mark:
            text = _with_opening(text, protocol.grammar, former_mark, opened_mark)
        ids = segment.ids if is_unchanged else _ids(text, protocol, tokenizer, is_agent)
        if segment.tag == PROMPT:
            ids = prompt
        elif number == 1 and protocol.file.opens_with_search:
            opening = [search for search in trajectory.searches if search.turn == 0]
            budgets = (limits.max_observation_tokens, limits.max_document_tokens)
            ids = protocol.template.block_ids(tokenizer, opening, *budgets) + prompt_tail
        logprobs = (segment.logprobs if is_unchanged else (0.0,) * len(ids)) if is_agent else ()
        segments.append(Segment(segment.author, segment.tag, tokenizer.decode(ids), ids, logprobs))
    return replace(
        trajectory, segments=tuple(segments), side_contexts=(), exact=True, messages=(), logged_protocol=None
    )


def _retokenised_calls(trajectory: Trajectory, protocol: Protocol, tokenizer: Tokenizer, same: bool) -> Trajectory:
    """`retokenised` for native tool calls: turns in coseek's own spelling, results in the frame of the tokenizer's chat
    template. Raises `DataError` for results in another template's frame, from which they cannot be extracted."""
    ids, _ = protocol.template.prompt_ids(tokenizer, trajectory.question)
    episode = Episode(0, trajectory.question, trajectory.seed, 0.0)
    episode.add(Segment(Author.ENVIRONMENT, PROMPT, tokenizer.decode(ids), ids))
    if same:
        return replace(trajectory, segments=(*episode.segments, *trajectory.segments[1:]), exact=True)
    native_turns, opened = NativeTurns(protocol.template, tokenizer), protocol.template.opened_mark(tokenizer)
    for is_agent, group in groupby(trajectory.segments[1:], lambda segment: segment.author is Author.AGENT):
        segments = list(group)
        if not is_agent:
            results = [tuple(tokenizer.encode_data(_result_text(segment, protocol))) for segment in segments]
            for segment, framed_ids in zip(segments, native_turns.frame(episode, results), strict=True):
                episode.add(Segment(Author.ENVIRONMENT, segment.tag, tokenizer.decode(framed_ids), framed_ids))
            continue
        for segment in segments:
            spelt = protocol.grammar.spell(segment.message or {})
            if opened:  # the frame begins the thought
                spelt = spelt.removeprefix(opened) if spelt.startswith(opened) else closing_of(opened) + spelt
            ids = (*protocol.template.text_ids(tokenizer, spelt), tokenizer.eos_id)
            text, logprobs, message = tokenizer.decode(ids), (0.0,) * len(ids), native_turns.read(ids)
            episode.add(Segment(Author.AGENT, segment.tag, text, ids, logprobs, message=message))
    return replace(trajectory, segments=tuple(episode.segments), exact=True, messages=(), logged_protocol=None)


def _result_text(segment: Segment, protocol: Protocol) -> str:
    """A result without the tags around it."""
    tag = protocol.grammar.by_name[protocol.grammar.observation]
    text = segment.text.strip().removeprefix(tag.opening).removesuffix(tag.closing)
    if tag.opening in text or protocol.grammar.escape(text) != text:
        raise DataError(
            "a run with native tool calls is framed by the chat template of another model; keep runs of the policy's "
            "own model, or of a server (dialect tools)"
        )
    return text


def _with_opening(text: str, grammar: Grammar, former_mark: str, opened_mark: str) -> str:
    """Adapt the first turn to another prompt: the former one opened reasoning with `former_mark`, the new one opens
    it with `opened_mark`."""
    own_marks = [tag.opening for tag in grammar.tags]
    if former_mark in own_marks or (former_mark and grammar.free_text):
        text = text if text.lstrip().startswith(former_mark) else former_mark + text
    elif former_mark and (parts := split_opened(text, former_mark)) is not None:
        thought, (reasoning, text) = grammar.thought, parts
        if thought and not text.lstrip().startswith(thought.opening):
            text = f"{thought.opening}{reasoning}{thought.closing}{text}"
    if opened_mark in own_marks or grammar.free_text:
        return text.lstrip().removeprefix(opened_mark) if opened_mark else text
    return closing_of(opened_mark) + text if opened_mark else text


def _ids(text: str, protocol: Protocol, tokenizer: Tokenizer, is_turn: bool) -> tuple[int, ...]:
    """A segment in a tokenizer's ids. A turn that no stop string ended gets this tokenizer's end-of-text token instead
    of another tokenizer's."""
    if not is_turn or any(stop in text for stop in protocol.grammar.stops):
        return protocol.template.text_ids(tokenizer, text)
    return (*protocol.template.text_ids(tokenizer, _END.sub("", text)), tokenizer.eos_id)


TOKENIZER_WORLDS = 6
"""Throw-away worlds that the tokenizer is trained on; together they hold every word of the language."""


def demonstrate(
    recipe: AgentRecipe,
    protocol: Protocol,
    tokenizer: Tokenizer,
    retriever: Retriever,
    dataset: Dataset,
    progress: Progress,
) -> list[Trajectory]:
    """All demonstrations of a recipe's warm start. `retriever` searches the data set. Throw-away worlds, renamed
    questions and known facts are always searched with BM25."""
    settings = recipe.warm_start
    assert settings is not None
    if settings.demonstrator == "runs":
        progress.stage("demonstrations", 1)
        stored = stored_demonstrations(settings.runs, settings.keep, protocol, tokenizer, recipe.limits, recipe.seed)
        progress.advance(1, f"{len(stored)} runs")
        return stored
    demonstrator = _demonstrator(settings, dataset.corpus)
    demonstrations: list[Trajectory] = []
    sources: Iterator[tuple[Retriever, Sequence[Question], Corpus]]
    progress.stage("demonstrations", settings.worlds if settings.uses_worlds else 1 + settings.renamed)
    if settings.uses_worlds:
        worlds = list(throw_away_worlds(recipe))
        sources = ((Bm25.over(world.corpus), world.questions["train"], world.corpus) for _, world in worlds)
        drills = find_plugin("scripted agent", SCRIPTED, EXPERT).drills
        for world_seed, world in worlds:
            rng = random.Random(f"{recipe.seed}/drills/{world_seed}")
            count = round(settings.drills * len(world.questions["train"]))
            demonstrations += drills(world, protocol, tokenizer, count, rng, settings.asking)
    else:
        training_questions = dataset.questions(recipe.data.train)
        renamed = (
            question_synthesis().rename(dataset.corpus, training_questions, recipe.seed * settings.renamed + copy)
            for copy in range(settings.renamed)
        )
        in_data_set = [*training_questions, *made_questions(recipe, dataset)]
        given = [(retriever, in_data_set, dataset.corpus)]
        sources = chain(given, ((Bm25.over(corpus), copies, corpus) for corpus, copies in renamed))
    for number, (engine, questions, corpus) in enumerate(sources, start=1):
        seed = derive_seed(recipe.seed, "shown", number)
        demonstrations += _play(demonstrator, protocol, tokenizer, engine, questions, recipe.limits, seed)
        count = round(settings.one_shot * len(questions))
        few = questions[:count] if settings.uses_worlds else draw(questions, count, recipe.seed)  # worlds are shuffled
        demonstrations += _baseline_demonstrations(recipe, tokenizer, engine, few, number)
        if settings.reading:
            rng = random.Random(f"{recipe.seed}/reading/{number}")
            sampled = rng.sample(questions, round(settings.reading * len(questions)))
            demonstrations += readings(sampled, corpus, engine, tokenizer, recipe.table.rag_passages, rng)
        for name, share in settings.also.items():
            sampled = random.Random(f"{recipe.seed}/{name}/{number}").sample(questions, round(share * len(questions)))
            other_protocol, seed = recipe.load_protocol(name), derive_seed(recipe.seed, name, number)
            demonstrations += _play(demonstrator, other_protocol, tokenizer, engine, sampled, recipe.limits, seed)
        progress.advance(number, f"{len(demonstrations)} runs")
    if settings.demonstrator == EXPERT and settings.known and KNOWN in dataset.splits:
        known_questions = [question for question in dataset.questions(recipe.data.train) if question.meta.get(KNOWN)]
        questions, seed = [*dataset.questions(KNOWN), *known_questions], derive_seed(recipe.seed, KNOWN)
        bm25 = Bm25.over(dataset.corpus)  # so that arms with other engines start from the same policy
        recalls = _play(demonstrator, protocol, tokenizer, bm25, questions, recipe.limits, seed)
        demonstrations += _repeat(recalls, round(len(demonstrations) * settings.known / (1 - settings.known)), seed)
    return demonstrations


def _repeat(demonstrations: Sequence[Trajectory], count: int, seed: int) -> Iterator[Trajectory]:
    """`count` demonstrations, repeated evenly in random order. Without hops, so that they keep their share of the draws
    under a curriculum."""
    shuffled = random.Random(seed).sample(demonstrations, len(demonstrations))
    without_hops = (replace(trajectory, question=replace(trajectory.question, hops=None)) for trajectory in shuffled)
    return islice(cycle(without_hops), count)


def _demonstrator(settings: WarmStartSettings, corpus: Corpus) -> ScriptedAgent:
    """The scripted agent that demonstrates."""
    if settings.demonstrator == "evidence":
        return EvidenceAgent(corpus)
    return open_scripted_agent(settings.demonstrator, *([settings.expert] if settings.demonstrator == EXPERT else []))


def _baseline_demonstrations(
    recipe: AgentRecipe, tokenizer: Tokenizer, retriever: Retriever, questions: Sequence[Question], number: int
) -> Iterator[Trajectory]:
    """The gold answers in the protocols of the table's baselines."""
    answerable = [question for question in questions if question.answers]
    limits = recipe.limits.with_passages(recipe.table.rag_passages)
    for name in ("direct", "rag"):
        protocol, seed = recipe.load_protocol(name), derive_seed(recipe.seed, name, number)
        yield from _play(GoldAnswerAgent(), protocol, tokenizer, retriever, answerable, limits, seed)


def readings(
    questions: Sequence[Question],
    corpus: Corpus,
    retriever: Retriever,
    tokenizer: Tokenizer,
    most: int,
    rng: random.Random,
) -> Iterator[Trajectory]:
    """Questions answered in the prompt of a frozen generator, from at most `most` passages: the gold passages among
    others that a search for the question finds. Questions without gold passages or answers are left out."""
    settings = GeneratorSettings(model="")
    prompt, budget = load_generator_prompt(settings), ContextBudget(settings.max_context_tokens)
    usable = [question for question in questions if question.gold_ids and question.answers]
    hit_lists = retriever.search([question.question for question in usable], most)
    for question, hits in zip(usable, hit_lists, strict=True):
        gold = [corpus.by_id(ident) for ident in question.gold_ids]
        others = [hit.passage for hit in hits if hit.passage.id not in question.gold_ids]
        passages = [*gold, *others[: rng.randint(0, max(0, most - len(gold)))]]
        rng.shuffle(passages)
        context = context_of(prompt, budget, question.question, passages)
        yield reply_to(question, "generator", context.prompt, held_answer(question, gold), tokenizer)


def reply_to(question: Question, protocol: str, message: str, reply: str, tokenizer: Tokenizer) -> Trajectory:
    """A message and the reply to it, as a trajectory."""
    before, after = chat_frame(tokenizer)
    prompt_ids = (*before, *tokenizer.encode_data(message), *after)
    opened_mark = opened_at_end(tokenizer.decode(after))
    closing_ids = tokenizer.encode(ending_empty_reasoning(opened_mark))  # the reply is no thought
    reply_ids = (*closing_ids, *tokenizer.encode_data(reply), tokenizer.eos_id)
    segments = (
        Segment(Author.ENVIRONMENT, PROMPT, tokenizer.decode(prompt_ids), prompt_ids),
        Segment(Author.AGENT, "", tokenizer.decode(reply_ids), reply_ids, (0.0,) * len(reply_ids)),
    )
    return Trajectory(question, protocol, segments, (), StopReason.COMPLETE)


def made_questions(recipe: AgentRecipe, dataset: Dataset) -> list[Question]:
    """The questions that a warm start makes from the passages of the data set, but for those of its held-out questions;
    by default an empty list."""
    settings = recipe.warm_start.made if recipe.warm_start else None
    return [] if settings is None else question_synthesis().training_questions(dataset, recipe.data.train, settings)


def throw_away_worlds(recipe: AgentRecipe) -> Iterator[tuple[int, MadeData]]:
    """Seed and world of the demonstrations. They share their words with all worlds, but not their facts."""
    settings = recipe.warm_start
    assert settings is not None
    for number in range(settings.worlds):
        seed = derive_seed(recipe.seed, "world", number) % 2**31
        yield seed, world_maker().make(settings.world.model_copy(update={"seed": seed}))


def texts_of(recipe: AgentRecipe, dataset: Dataset) -> Iterator[str]:
    """The tokenizer's training texts: throw-away worlds, or the corpus and the training questions."""
    settings = recipe.warm_start
    if settings is not None and settings.uses_worlds:
        for _, world in islice(throw_away_worlds(recipe), TOKENIZER_WORLDS):
            yield from texts_in(world.corpus, world.questions["train"])
    else:
        yield from texts_in(dataset.corpus, dataset.questions(recipe.data.train))


def texts_in(corpus: Sequence[Passage], questions: Sequence[Question]) -> Iterator[str]:
    """The texts of passages and questions as a prompt spaces them."""
    for passage in corpus:
        yield f"{passage.title} :{passage.text}"
    for question in questions:
        yield question.question


def _play(
    demonstrator: ScriptedAgent,
    protocol: Protocol,
    tokenizer: Tokenizer,
    retriever: Retriever,
    questions: Sequence[Question],
    limits: Limits,
    seed: int,
) -> list[Trajectory]:
    agent = Agent(protocol, ScriptedAgentModel(demonstrator, protocol, tokenizer))
    seeds = [derive_seed(seed, question.id) for question in questions]
    trajectories = rollout(agent, retriever, questions, seeds, limits)
    if isinstance(demonstrator, EvidenceAgent):
        trajectories = [trajectory for trajectory in trajectories if _has_read_its_answer(trajectory)]
    return [sequence for trajectory in trajectories for sequence in (trajectory, *notes_of(trajectory))]


def _has_read_its_answer(trajectory: Trajectory) -> bool:
    """Whether a run ended by itself, found its gold passages, and was shown the answer if one of them holds it: a long
    passage may have been cut before the answer."""
    has_ended = trajectory.stop in (StopReason.ANSWERED, StopReason.COMPLETE) and not trajectory.declined
    passages = {hit.passage.id: hit.passage for search in trajectory.searches for hit in search.hits}
    if not has_ended or not set(trajectory.question.gold_ids) <= passages.keys():
        return False
    observations = (segment for segment in trajectory.segments if segment.author is Author.ENVIRONMENT)
    observed_text = " ".join(segment.text for segment in observations if segment.tag != PROMPT)
    answer = held_answer(trajectory.question, list(passages.values()))
    return has_words(observed_text, answer) or not any(holds(passage, answer) for passage in passages.values())


def notes_of(trajectory: Trajectory) -> list[Trajectory]:
    """The side contexts of a run (Search-o1's reason-in-documents), each as a trajectory."""
    return [
        replace(trajectory, segments=segments, side_contexts=(), searches=(), answer=None, evidence=None)
        for segments in trajectory.side_contexts
    ]


# The initial policy, whose tokenizer is trained on these texts.


def write_start(
    recipe: AgentRecipe, marks: Sequence[str], open_data: Callable[[], Dataset], folder: Path, progress: Progress
) -> None:
    """Write an untrained laptop policy with its tokenizer, or the recipe's model with its new tokens.

    Word tokens come from the texts of the warm start. Without a warm start none are added: nothing would train their
    vectors before the first rollout, and a trained policy would read them worse than their pieces.
    """
    policy, seed, has_warm_start = recipe.policy, recipe.seed, recipe.warm_start is not None
    if policy.folder is None:
        make_policy(policy.laptop, texts_of(recipe, open_data()), marks, folder, seed)
        return
    for warning in policy_warnings(recipe):
        progress.warn(warning)
    source, tags = model_path(policy.folder), marks if policy.add_tag_tokens else ()
    words: list[str] = []
    if policy.add_word_tokens and has_warm_start:
        words = spelt_words(source, texts_of(recipe, open_data()), policy.add_word_tokens)
    elif policy.add_word_tokens:
        progress.say(
            "no words are added to the tokenizer (policy.add_word_tokens): without a warm start nothing trains them"
        )
    if not has_warm_start and (untrained := new_tags(source, tags)):
        progress.warn(
            f"{', '.join(untrained)} become tokens with untrained vectors, and there is no warm start; if "
            f"{policy.folder} writes these tags already, set policy.add_tag_tokens=false"
        )
    add_tokens(source, tags, words, folder, seed)


def policy_warnings(recipe: AgentRecipe) -> list[str]:
    """Why the recipe's model may write invalid turns: its chat template, or its former training."""
    if recipe.policy.folder is None or not (folder := model_path(recipe.policy.folder)).is_dir():
        return []
    protocol = recipe.load_protocol(run_files=False)
    warnings = []
    if recipe.warm_start is None and (former := former_protocol(folder, protocol)):
        warnings.append(
            f"{folder} was trained in the protocol {former}, and the recipe's is {protocol.name}, whose tags nothing "
            f"teaches it before the first rollout; set protocol={former}, or give the recipe a warm_start"
        )
    with suppress(DataError):  # of a tokenizer that cannot be opened, which other checks name
        warnings.append(protocol.template.unread_opening(HfTokenizer.load(folder)))
    return list(filter(None, warnings))
