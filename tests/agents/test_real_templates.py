"""Agents with the tokenizers and chat templates of six model families, as published: `make test-templates`."""

from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest
import torch
from tests.agents.playing import CORPUS, QUESTION, WIDE, Shelf, Typist, script
from tests.agents.test_chat_templates import as_published, said
from tests.agents.test_native_calls import check_conversations, conversation
from tests.models.chat_styles import STYLES, Calls
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from coseek.agents.derivation import Derivation
from coseek.agents.drivers import Agent, rollout
from coseek.agents.factory import settings_for
from coseek.agents.protocol import load_protocol
from coseek.core.errors import SettingError
from coseek.core.files import Json, write_jsonl
from coseek.data.run import Run
from coseek.data.trajectory import Author, Trajectory
from coseek.data.trajectory_checks import check_trajectory
from coseek.models.chat import templated
from coseek.models.pretrained import save_model
from coseek.models.tokenizer import HfTokenizer
from coseek.pipelines.agent_run import RunSettings, run_agent
from coseek.pipelines.audit import audit_run
from coseek.retrieval.factory import open_retriever
from coseek.retrieval.index import build_index
from coseek.training.trainer.batch import make_batch

FOLDER = Path(__file__).parents[2] / "build" / "tokenizers"
FAMILIES: dict[str, tuple[str, dict[str, object]]] = {
    "qwen2_5": ("qwen2", {}),
    "qwen3": ("qwen3", {}),
    "llama3_1": ("llama", {}),
    "gemma3": ("gemma3_text", {}),
    "deepseek_v3": ("deepseek_v3", {
        "num_key_value_heads": 4, "q_lora_rank": 16, "kv_lora_rank": 16,
        "qk_nope_head_dim": 8, "qk_rope_head_dim": 8, "v_head_dim": 8, "n_routed_experts": 4, "num_experts_per_tok": 2,
        "n_group": 1, "topk_group": 1, "n_shared_experts": 1, "first_k_dense_replace": 1, "moe_intermediate_size": 16,
    }),
    "gptoss": ("gpt_oss", {"num_local_experts": 4, "num_experts_per_tok": 2}),
}  # fmt: skip
"""The folder of each family, and the architecture of its tiny network."""
HARMONY = (
    "{% for m in messages %}<|start|>{{ m.role }}<|message|>{{ m.content }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant{% endif %}"
)
"""A template for gpt-oss, whose package has none."""
THOUGHT = "{% if add_generation_prompt %}<think>\n{% endif %}"
"""How R1-Distill and Qwen3-Thinking end a template."""
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not (FOLDER / "made-from-these-digests").is_file(), reason="make test-templates"),
    pytest.mark.parametrize("family", FAMILIES, scope="module"),
]


@pytest.fixture(scope="module")
def tokenizer(family: str) -> HfTokenizer:
    return HfTokenizer.load(FOLDER / family)


def check(name: str, tokenizer: HfTokenizer, run: Trajectory, read: tuple[int, ...]) -> None:
    """The run is valid and sound, its row is what the model read and wrote, and the loss sees what it wrote."""
    assert run.valid and (run.answer == "1815" or name == "s3"), run.format_error
    assert read == run.ids and not list(check_trajectory(run, decode=tokenizer.decode))
    assert not list(Derivation(load_protocol(name), tokenizer, WIDE, own_ranking=False).differences(run))
    batch = make_batch([run])
    written = [token for segment in run.segments if segment.author is Author.AGENT for token in segment.ids]
    assert batch.ids_BT[0].tolist() == [*run.ids] and batch.ids_BT[batch.agent_BT].tolist() == written


def test_native_calls_stand_as_the_template_writes_them(tokenizer: HfTokenizer, family: str) -> None:
    protocol, thought = load_protocol("tools"), "Look it up." if family == "qwen3" else ""
    calls: Calls = [("search", {"query": "Ada"}), ("search", {"query": "Eve"})]
    turns = [(thought, "", calls), (thought, "1815", ())]
    model = Typist(tokenizer, [STYLES["thinking"].write(*turn) for turn in turns])
    agent = Agent(protocol, model)
    if tokenizer.fast.chat_template and not family.startswith("qwen"):  # the published template takes no tools
        with pytest.raises(SettingError, match="does not show the tool 'search'"):
            rollout(agent, Shelf(), [QUESTION], [7], WIDE)
        return
    (run,) = rollout(agent, Shelf(), [QUESTION], [7], WIDE)
    check("tools", tokenizer, run, model.read[0])
    if tokenizer.fast.chat_template:
        rendered = templated(tokenizer, conversation(run, turns, tokenizer), protocol.grammar.schemas, answers=False)
        assert rendered == f"{tokenizer.decode(run.ids)}\n"
        assert list(run.ids) == tokenizer.encode(rendered)[: len(run.ids)]


def test_native_calls_survive_the_tokenizers_of_every_family(
    tokenizer: HfTokenizer, family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the published template where it takes tools, else in one in its manner."""
    style = STYLES[{"qwen3": "thinking", "llama3_1": "llama3", "gptoss": "harmony"}.get(family, "hermes")]
    if not family.startswith("qwen"):
        monkeypatch.setattr(tokenizer.fast, "chat_template", style.template)
    check_conversations(style, tokenizer, 40)


@pytest.mark.parametrize("name", ["search-r1", "react", "qagent", "s3", "search-o1"])
def test_a_run_is_framed_as_the_template_frames_it_and_only_ever_extended(tokenizer: HfTokenizer, name: str) -> None:
    model = Typist(tokenizer, script(name))
    (run,) = rollout(Agent(load_protocol(name), model), Shelf(), [QUESTION], [7], WIDE)
    check(name, tokenizer, run, model.read[0])
    if tokenizer.fast.chat_template and name not in ("s3", "search-o1"):  # a search opens s3, braces are in the other
        assert run.segments[0].ids == as_published(tokenizer, said(name))
    bos = tokenizer.fast.bos_token_id
    assert bos is None or run.ids.count(bos) <= 1


@pytest.mark.parametrize("name", ["search-r1", "react"])
@pytest.mark.parametrize("again", [False, True], ids=["once", "opened again"])
def test_a_thought_that_the_template_opens_is_valid(
    tokenizer: HfTokenizer, name: str, again: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tokenizer.fast, "chat_template", (tokenizer.fast.chat_template or HARMONY) + THOUGHT)
    first, *rest = script(name)
    model = Typist(tokenizer, [first if again else first.removeprefix("<think>"), *rest])
    (run,) = rollout(Agent(load_protocol(name), model), Shelf(), [QUESTION], [7], WIDE)
    assert run.segments[0].text.endswith("<think>\n")
    check(name, tokenizer, run, model.read[0])


def test_a_prompt_without_a_template_begins_as_the_tokenizer_begins_a_text(
    tokenizer: HfTokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = tuple(tokenizer.fast(said("search-r1")).input_ids)
    monkeypatch.setattr(tokenizer.fast, "chat_template", None)
    model = Typist(tokenizer, script("search-r1"))
    (run,) = rollout(Agent(load_protocol("search-r1"), model), Shelf(), [QUESTION], [7], WIDE)
    check("search-r1", tokenizer, run, model.read[0])
    assert run.segments[0].ids == wanted


def test_a_system_message_reaches_every_family(tokenizer: HfTokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokenizer.fast, "chat_template", tokenizer.fast.chat_template or HARMONY)
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": QUESTION.question}]
    question = replace(QUESTION, meta={"prompt": cast(Json, messages)})
    ids, tail = load_protocol("search-r1", "data").template.prompt_ids(tokenizer, question)
    assert (ids, tail) == (as_published(tokenizer, "Be brief.", QUESTION.question), ())


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    write_jsonl(folder / "corpus.jsonl", ({"id": one.id, "contents": one.contents} for one in CORPUS))
    write_jsonl(folder / "questions.test.jsonl", [QUESTION.to_json()])
    build_index(folder, "bm25", folder / "index")
    return folder


def tiny(family: str, tokenizer: HfTokenizer) -> PreTrainedModel:
    """A network of the family's architecture, with random weights."""
    shape = {
        "vocab_size": tokenizer.size, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "max_position_embeddings": 4096,
        "pad_token_id": tokenizer.eos_id, "bos_token_id": None, "eos_token_id": tokenizer.eos_id,
    }  # fmt: skip
    kind, changes = FAMILIES[family]
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **{**shape, **changes}))
    assert isinstance(model, PreTrainedModel)
    return model


def learn(model: PreTrainedModel, run: Trajectory) -> None:
    """Train until every token of the agent is the likeliest."""
    batch = make_batch([run])
    where = batch.agent_BT[0].nonzero()[:, 0]
    wanted = batch.ids_BT[0, where]
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    for _ in range(300):
        logits = model(input_ids=batch.ids_BT, logits_to_keep=where - 1).logits[0]
        if (logits.argmax(-1) == wanted).all():
            return
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(logits, wanted).backward()
        optimizer.step()
    raise AssertionError("it has not learnt the run")


@pytest.mark.parametrize("name", ["search-r1", "react"])
def test_a_network_of_the_family_samples_a_sound_run(
    family: str, tokenizer: HfTokenizer, name: str, data: Path, tmp_path: Path
) -> None:
    policy = str(tmp_path / "policy")
    index, protocol = open_retriever(str(data / "index")), load_protocol(name)
    (taught,) = rollout(Agent(protocol, Typist(tokenizer, script(name))), index, [QUESTION], [7], WIDE)
    model = tiny(family, tokenizer)
    learn(model, taught)
    save_model(model, tokenizer, Path(policy))
    who = settings_for(policy, name).model_copy(update={"precision": "float32", "temperature": 0.0})
    settings = RunSettings(
        questions=str(data), split="test", retriever=str(data / "index"), agent=who, limits=WIDE, samples=1
    )
    run_agent(settings, tmp_path / "run", resume=False)
    (run,) = Run(tmp_path / "run").trajectories()
    assert run.valid and run.answer == "1815" and run.ids == taught.ids
    audit = audit_run(tmp_path / "run", str(data / "index"), policy)
    assert audit.count == 0 and audit.derived == 1 and not audit.left_out, (audit.violations, audit.left_out)
