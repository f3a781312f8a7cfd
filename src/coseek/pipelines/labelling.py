"""Labelling: the settings of `coseek label`, the parts that it opens, and the folder that it writes.

*Logged searches* are those of a run or a label folder, each as a separate question with its relevant passages: for a
run, the gold passages that no search or visit of an earlier turn returned; for a label folder, the positives of the
search.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import cast

from coseek.agents.factory import AgentSettings, is_scripted, limits_for, open_agent, settings_for, settled_for
from coseek.agents.limits import Limits
from coseek.agents.protocol import Protocol, load_protocol, tool_files
from coseek.agents.search_turns import SearchTurn, TurnId, search_turns
from coseek.core.cluster import Cluster
from coseek.core.connections import is_url
from coseek.core.errors import DataError, SettingError, nearest
from coseek.core.files import JsonObject, check_output_folder
from coseek.core.fingerprint import digest_of, fingerprint
from coseek.core.lock import lock_folder
from coseek.core.plugins import is_plugin_path, running
from coseek.core.settings import Settings, dump_settings, fixed_settings, make_settings
from coseek.data.dataset import check_same_passages, draw
from coseek.data.question import OWN_PASSAGE, Question, questions_by_id
from coseek.data.run import Run
from coseek.graders.judge import is_world
from coseek.hardware.placement import DevicePlacement, Placement
from coseek.labels.label_folder import LabelFolder
from coseek.labels.labelling import ClusterMaker, LabelJob, LabelSummary, check_distinct, digests_of, make_labels
from coseek.labels.maker import LabelMaker, RolloutMaker, StoredTurns, maker_module
from coseek.labels.makers.gold import unseen
from coseek.labels.resources import GOLD, ORACLE, AgentWithLimits, LabelResources
from coseek.models.model_folder import model_path, shipped_models
from coseek.models.server import ServerSettings, split_settings
from coseek.pipelines.agent_run import check_gold
from coseek.retrieval.factory import open_retriever, plugin_files, settings_in
from coseek.retrieval.index import IndexCard
from coseek.retrieval.query import Query
from coseek.retrieval.retriever import Retriever


class LabelSettings(Settings):
    """The settings of `coseek label`, besides the method's own."""

    runs: list[str]
    """The run folders whose searches are labelled."""
    count: int | None = None
    """Number of questions, drawn in proportion to the data sets; all by default."""
    method: str
    """The labelling method."""
    retriever: str
    """The current retriever, which finds the candidates."""
    agent: AgentSettings | None = None
    """The agent of continuations, for methods that need one."""
    limits: Limits = Limits()
    """The agent's limits."""
    scorer: str | None = None
    """Scorer of passages, for methods that need one."""
    likelihood: str | None = None
    """Model of answer likelihoods, for methods that need one."""
    placement: Placement = Placement()
    """Placement of these two, where they are model folders."""


def fixed_parts(settings: JsonObject) -> JsonObject:
    """The settings that must not change when labelling is resumed. Those of how a server is asked may change."""
    fixed = fixed_settings(LabelSettings, settings)
    for name in ("scorer", "likelihood"):
        if is_url(url := fixed.get(name)):
            address, server_settings = split_settings(url)
            fixed[name] = {"url": address, **fixed_settings(ServerSettings, server_settings)}
    return fixed


def label_settings(
    runs: Sequence[str],
    typed: JsonObject,
    fields: JsonObject,
    retriever: str | None = None,
    agent: str | None = None,
    temperature: float = 0.0,
    device: str | None = None,
) -> tuple[LabelSettings, JsonObject]:
    """The settings of labelling, and the method's own as plain values.

    `typed` holds settings of the method, the agent's budgets as the group `limits`, and the group `placement`; `fields`
    the other fields of `LabelSettings`, except those that come from the runs or from `retriever`, `agent` and
    `temperature`. `device` is that of all local models.
    """
    module = maker_module(str(fields["method"]))
    if not runs:
        raise SettingError("name a run folder to label; make one with `coseek run`")
    open_runs = [Run(Path(folder)) for folder in runs]
    tree = dict(typed)
    limits, placement = tree.pop("limits", {}), tree.pop("placement", {})
    for name in set(tree) & set(Limits.model_fields) - set(module.SETTINGS.model_fields):
        raise SettingError(f"no setting named {name!r}; the agent's budgets are a group: limits.{name}=…")
    of_method = make_settings(module.SETTINGS, tree)
    method_settings, agent_settings = dump_settings(of_method), agent_of(open_runs, agent, temperature)
    if device is not None:
        placement = {"device": device, **placement} if isinstance(placement, dict) else placement
        agent_settings = agent_settings and agent_settings.model_copy(update={"device": device})
    if agent_settings is not None and module.terms(of_method).rolls_out and not is_scripted(agent_settings.name):
        samples = cast(int, method_settings["samples"])  # scripted agents are random at temperature 0, too
        if samples > 1 and agent_settings.temperature == 0:
            problem = f"samples={samples} at temperature 0 would be one run {samples} times"
            raise SettingError(f"{problem}; add --temperature 1")
    base = dump_settings(limits_of(open_runs, agent, agent_settings))
    chosen: JsonObject = {**fields, "runs": [*runs], "retriever": retriever_of(open_runs, retriever)}
    chosen["agent"] = None if agent_settings is None else dump_settings(agent_settings)
    chosen["limits"] = {**base, **limits} if isinstance(limits, dict) else limits
    return make_settings(LabelSettings, {**chosen, "placement": placement}), method_settings


def label_runs(
    settings: LabelSettings,
    method_settings: JsonObject,
    out: Path,
    resume: bool = False,
    cache: Path | None = None,
    tell: Callable[[str, int, int], None] = lambda *_: None,
    cluster: Cluster | None = None,
) -> LabelSummary:
    """Label the search turns of the runs into the folder `out`, which is locked.

    Every part is opened and checked before `labels.yaml` is written. `tell` is called with (`runs` or `turns`, done,
    total). With a `cluster`, its processes make the labels.
    """
    if not resume:
        LabelFolder.refuse_old(out)
    check_output_folder(out, "labels.yaml", own=("scores", "run"))  # here, before the parts put their files into it
    with lock_folder(out), ExitStack() as stack:
        settings = settled_for(settings, settings.agent, out / "labels.yaml", (settings.scorer, settings.likelihood))
        questions = questions_of_runs(settings)
        opener = partial(open_maker, settings, method_settings, questions, cache)
        maker, parts = opener(out)
        stack.enter_context(closing(parts))
        turns: Iterable[SearchTurn] = []
        if not isinstance(maker, RolloutMaker):
            question_ids = {question.id for question in questions}
            turns = [turn for run in runs_of(settings) for turn in turns_of(run, question_ids)]
            if not turns:
                raise DataError(f"{', '.join(settings.runs)}: no searches, so there is nothing to label")
        check_distinct(turns)  # raises before there is a folder
        recorded_settings: JsonObject = {**dump_settings(settings), settings.method: method_settings}
        labels = LabelFolder.begin(out, recorded_settings, maker.identity, resume, fixed_parts)
        stack.callback(labels.release)
        stack.enter_context(running("label method", settings.method))
        if cluster is not None:
            shared = ClusterMaker(cluster, LabelJob(opener, out, maker.identity), parts.tally)
            if isinstance(maker, RolloutMaker):
                run = shared.roll_out(maker, questions, partial(tell, "runs"))
                turns = StoredTurns(run, parts.agent.protocol, {question.id for question in questions})
            maker = shared
        elif isinstance(maker, RolloutMaker):
            turns = maker.roll_out(questions, partial(tell, "runs"))
        runs = [turns.run] if isinstance(turns, StoredTurns) else runs_of(settings)
        return make_labels(labels, maker, turns, parts.tally, partial(tell, "turns"), partial(digests_of, runs))


def open_maker(
    settings: LabelSettings,
    method_settings: JsonObject,
    questions: Sequence[Question],
    cache: Path | None,
    folder: Path,
) -> tuple[LabelMaker, LabelResources]:
    """Open a method with its parts, whose scores are stored in `folder`."""
    module = maker_module(settings.method)
    parts = open_parts(settings, folder, questions, cache)
    return module.open(make_settings(module.SETTINGS, method_settings), parts), parts


def questions_of_runs(settings: LabelSettings) -> list[Question]:
    """A draw of `count` different questions of the runs, in order. Raises `DataError` for two that share an id."""
    asked = (trajectory.question for run in runs_of(settings) for trajectory in run.trajectories())
    questions = questions_by_id(asked, "label them apart")
    return draw(list(questions.values()), settings.count, 0)


def runs_of(settings: LabelSettings) -> list[Run]:
    return [Run(Path(name)) for name in settings.runs]


def turns_of(run: Run, question_ids: Collection[str] | None = None) -> Iterator[SearchTurn]:
    """The search turns of a run, in order, of some questions or of all."""
    protocols: dict[str, Protocol] = {}
    for trajectory in run.trajectories():
        name = trajectory.protocol
        if question_ids is None or trajectory.question.id in question_ids:
            protocols[name] = protocols.get(name) or protocol_of(run, name)
            yield from search_turns(trajectory, protocols[name])


def protocol_of(run: Run, name: str) -> Protocol:
    """The protocol of a run; a user's protocol is read from its file."""
    agent = run.settings.get("agent")
    agent_record = agent if isinstance(agent, dict) else {}
    return load_protocol(str(agent_record.get("protocol", name)), str(agent_record.get("prompt_template", "default")))


def retriever_of(runs: Sequence[Run], name: str | None) -> str:
    """The given retriever, or that of the runs."""
    if name is not None:
        return name
    retriever, *others = {str(run.settings.get("retriever") or "") for run in runs}
    if others:
        raise SettingError("the runs have different retrievers; choose with --retriever")
    if not retriever:
        raise SettingError(f"{runs[0].folder} does not say which retriever it had; name one with --retriever")
    _refuse_unnamed([] if is_url(retriever) else plugin_files(retriever), "--retriever", retriever)
    return retriever


def agent_of(runs: Sequence[Run], name_given: str | None, temperature: float) -> AgentSettings | None:
    """The given agent, or that of the runs, at `temperature`. `None` if a run names no agent, or if the runs differ in
    agent or limits: the few methods that need an agent then ask for --agent."""
    if name_given is not None:
        return settings_for(name_given).model_copy(update={"temperature": temperature})
    first, *others = [(run.settings.get("agent"), run.settings.get("limits")) for run in runs]
    agent_record, _ = first
    if any(other != first for other in others) or not isinstance(agent_record, dict):
        return None
    if not AgentSettings.model_fields.keys() >= agent_record.keys():  # naive RAG of a training's table has no agent
        return None
    name = str(agent_record.get("name"))
    _refuse_unnamed([name] if is_plugin_path(name) else [], "--agent", name)
    settings = make_settings(AgentSettings, {**agent_record, "temperature": temperature})
    tools = [str(path) for path in tool_files(settings.protocol)]
    _refuse_unnamed(tools, "--agent", f"FILE.yaml with the lines `name: {name}` and `protocol: {settings.protocol}`")
    return settings


def _refuse_unnamed(files: Sequence[str], option: str, name: str) -> None:
    """Refuse Python files that only the runs name: data never causes code to run."""
    if files:
        raise SettingError(f"the runs were made with {files[0]}, which is run only if you name it: {option} {name}")


def limits_of(runs: Sequence[Run], agent_name: str | None, agent: AgentSettings | None) -> Limits:
    """The limits of the runs for their own agent, else those of the given agent."""
    if agent is None:
        return Limits()
    tree = None if agent_name is not None else runs[0].settings.get("limits")
    return make_settings(Limits, tree) if isinstance(tree, dict) else limits_for(agent)


def open_parts(settings: LabelSettings, out: Path, questions: Iterable[Question], cache: Path | None) -> LabelResources:
    """Open the retriever. Agent and models are opened when a method needs them."""
    if not (is_url(settings.retriever) or settings_in(settings.retriever) or Path(settings.retriever).exists()):
        raise DataError(f"there is no retriever at {settings.retriever}; name another with --retriever")
    retriever = open_retriever(settings.retriever)
    check_gold(questions, retriever, settings.retriever)
    check_same_corpus(runs_of(settings), retriever, settings.retriever)
    scorer, world = settings.scorer, None
    if scorer is not None and is_world(scorer):
        scorer, world = ORACLE, Path(scorer)
    elif scorer == ORACLE:
        world = next((folder for folder in _world_folders(settings) if is_world(folder)), None)
    elif scorer is not None and scorer != GOLD and not (is_url(scorer) or model_path(scorer).exists()):
        scorers = [ORACLE, GOLD, *shipped_models()]
        raise SettingError(
            f"no scorer named {scorer!r}{nearest(scorer, scorers)} Known: {', '.join(scorers)}, a model folder, the "
            "folder of a laptop world, a YAML file, or the address of a server"
        )
    agent, limits = settings.agent, settings.limits
    return LabelResources(
        folder=out,
        found_by=retriever,
        open_agent=None if agent is None else lambda: AgentWithLimits(open_agent(agent), limits, identity_of(agent)),
        scorer_name=scorer,
        world=world,
        likelihood_name=settings.likelihood,
        placement=settings.placement,
        cache=cache,
    )


def check_same_corpus(runs: Iterable[Run], retriever: Retriever, name: str) -> None:
    """Compare passages of the runs with the retriever's corpus, if that is not their own."""
    for run in runs:
        index = run.settings.get("index")
        card = index.get("corpus") if isinstance(index, dict) else None
        if retriever.corpus is None or not isinstance(card, dict) or card.get("digest") == retriever.corpus.digest:
            continue
        searches = (search for trajectory in run.trajectories() for search in trajectory.searches)
        passages = (hit.passage for search in searches for hit in search.hits)
        check_same_passages(passages, retriever.corpus, f"passages that {run.folder} retrieved", name)


def _world_folders(settings: LabelSettings) -> Iterable[Path]:
    """The folders of the runs' questions and of the index's corpus, which may be laptop worlds."""
    for name in settings.runs:
        questions = Run(Path(name)).settings.get("questions")
        if isinstance(questions, str):
            yield from (Path(questions), Path(questions).parent)
    if settings_in(settings.retriever):
        return
    index = Path(settings.retriever)
    if (index / "index.json").is_file() and (corpus := IndexCard.read(index).corpus.path) is not None:
        yield (index.resolve() / corpus).parent


def identity_of(agent: AgentSettings) -> str:
    """Digest of an agent's settings, weights and files. Paths and device do not count."""
    fields: JsonObject = agent.model_dump(mode="json", exclude={"name", "tokenizer", *DevicePlacement.model_fields})
    parts = [str(sorted(fields.items()))]
    for name in (agent.name, agent.tokenizer):
        folder = None if name is None or is_scripted(name) else model_path(name)
        parts.append(fingerprint(folder) if folder is not None and folder.is_dir() else str(name))
    for name in (agent.name, agent.protocol, agent.prompt_template, *map(str, tool_files(agent.protocol))):
        if name.endswith((".yaml", ".yml")) or is_plugin_path(name):
            parts.append(Path(name).read_text(encoding="utf-8"))
    return digest_of("agent", *parts)


@dataclass(frozen=True, slots=True)
class LoggedSearch:
    """One search that an agent made."""

    turn: TurnId
    owner: Question
    """The question that the agent was answering."""
    query: Query
    relevant: tuple[str, ...]

    @property
    def question(self) -> Question:
        """The search as a question with its own id and the owner's answers."""
        grades = self.owner.meta.get("relevance")
        meta = {name: value for name, value in self.owner.meta.items() if name != "relevance"}
        if isinstance(grades, dict):
            meta["relevance"] = {ident: grade for ident, grade in grades.items() if ident in self.relevant}
        if self.owner.own_passage is not None:
            meta[OWN_PASSAGE] = self.owner.own_passage
        return replace(self.owner, id="/".join(self.turn.key), gold_ids=self.relevant, meta=meta)


@dataclass(frozen=True)
class LoggedSearches:
    """The searches of some questions."""

    searches: tuple[LoggedSearch, ...]
    rule: str
    """Which passages are relevant."""

    @property
    def owners(self) -> list[Question]:
        """The different questions, in order."""
        return list({search.owner.id: search.owner for search in self.searches}.values())

    def of(self, owners: Iterable[Question]) -> "LoggedSearches":
        """The searches of these questions only."""
        idents = {owner.id for owner in owners}
        return LoggedSearches(tuple(search for search in self.searches if search.owner.id in idents), self.rule)


def logged_searches(folder: Path, split: str | None = None) -> LoggedSearches | None:
    """The searches of a run or label folder; `None` for any other path. Raises `DataError` if there is no search, and
    `SettingError` for a `split`."""
    is_run = (folder / "run.yaml").is_file()
    if not is_run and not (folder / "labels.yaml").is_file():
        return None
    if split is not None:
        raise SettingError(f"{folder} holds the searches of a run, which has no splits; leave out --split")
    searches: dict[TurnId, LoggedSearch] = {}
    if is_run:
        rule = "Relevant to a search: the gold passages that no search or visit of an earlier turn had returned."
        for turn in turns_of(Run(folder)):
            searches[turn.id] = LoggedSearch(turn.id, turn.question, turn.query, tuple(unseen(turn)))
    else:
        rule = "Relevant to a search: the positives of its label."
        for label in LabelFolder(folder).sets():  # a turn with several positives has a label set for each
            earlier = searches[label.turn].relevant if label.turn in searches else ()
            relevant = tuple(dict.fromkeys((*earlier, label.positive)))
            searches[label.turn] = LoggedSearch(label.turn, label.question, label.query, relevant)
    if not searches:
        raise DataError(f"{folder} holds no search, so there is nothing to measure")
    return LoggedSearches(tuple(searches.values()), rule)
