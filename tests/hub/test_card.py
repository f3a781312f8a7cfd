"""Cards: they hold what is known, invent nothing, and no foreign text becomes markup, code or YAML."""

import re
from pathlib import Path

import pytest
import yaml
from hypothesis import given, strategies as st
from markdown_it import MarkdownIt
from markdown_it.token import Token

from coseek.core.errors import DataError, SettingError
from coseek.core.files import write_yaml
from coseek.core.settings import Settings, changed_settings, make_settings
from coseek.hub.card import FILE, ModelCard, base_model_of, front_of, inert, paragraph, read_card, shared, shown_table
from coseek.lab.pipelines.recipes import BaseRecipe, GeneratorRecipe
from coseek.measure.table import Table
from coseek.pipelines.agent_recipe import load_recipe, preset_names, recipe_names
from coseek.pipelines.together_recipe import load_together_recipe
from coseek.training.encoder.recipe import RetrieverRecipe, load_retriever_recipe, retriever_recipe_names

HOSTILE = [
    "<script>alert(1)</script>",
    "[click](javascript:alert(1))",
    "![x](https://example.org/pixel.png)",
    "<https://example.org> https://example.org www.example.org a@example.org @someone",
    "```\n# Out of the fence\n```",
    "~~~~\nout",
    "---\nlicense: mit\n---",
    "# heading\n- list\n1. list\n> quotation\n| a | b |",
    "a: b: 'c\" {x: [y",
    "**bold** _soft_ `code` $x$ &lt; \\ ~~gone~~",
    "\x1b[31mred\x1b[0m \u202egnirts\u202c \u2028line",
    "setext\n===",
]


MARKDOWN = MarkdownIt("gfm-like", {"html": True, "linkify": True})


def tokens(text: str) -> list[Token]:
    """All tokens of a page, those inside paragraphs and cells included, as GitHub's Markdown reads them."""
    page = MARKDOWN.parse(front_of(text, Path())[1])
    return [inner for token in page for inner in (token, *(token.children or ()))]


def card(text: str) -> ModelCard:
    return ModelCard(
        kind="policy",
        title=text,
        about=text,
        facts={text: text},
        command=f"coseek train agent {text}",
        recipe={"about": text, text: [text]},
        figures=shown_table(Table((text, "em"), ((text, "0.512 [0.470, 0.555]"),), (text,))),
        limits=text,
        base_model=text,
    )


KINDS = {token.type for token in tokens(card("plain").text())}
TEXT_KINDS = {"text", "code_inline", "softbreak"}


@pytest.mark.parametrize("text", HOSTILE)
def test_text_of_others_stays_text_in_a_card(text: str) -> None:
    page = card(text).text()
    assert {token.type for token in tokens(page)} <= KINDS
    headings = [item.content for item, after in zip(tokens(page)[1:], tokens(page), strict=False) if after.tag == "h2"]
    assert [heading for heading in headings if heading] == ["Training", "Figures", "Use", "Limits"]
    front, _ = front_of(page, Path())
    assert front["license"] == "unknown" and front["base_model"] == text
    block = next(token.content for token in tokens(page) if token.info == "yaml")
    kept = yaml.safe_load(block)
    assert set(kept) == {"about", shared(text)} and "\x1b" not in page and "\u202e" not in page
    shown = next(token for token, before in zip(tokens(page)[1:], tokens(page), strict=False) if before.tag == "p")
    read = "".join(token.content for token in shown.children or () if token.type == "text")
    assert "".join(read.split()) == "".join(re.sub("[\x1b\u202e\u202c\u2028]", "", text).split())


@given(st.text(max_size=60))
def test_any_text_is_one_plain_paragraph_and_one_plain_cell(text: str) -> None:
    alone = MARKDOWN.parse(paragraph(text))
    inside = [child.type for token in alone for child in token.children or ()]
    assert [token.type for token in alone] in ([], ["paragraph_open", "inline", "paragraph_close"])
    assert set(inside) <= {"text", "text_special"}
    table = tokens(shown_table(Table((text, "b"), ((text, text),))))
    assert sum(token.type == "td_open" for token in table) == 2 and "\n" not in inert(text)


@pytest.mark.parametrize("license", ["MIT License", "", "apache 2", "-", "a" * 80, "mit\nbase_model: x"])
def test_a_licence_that_is_no_identifier_is_refused(license: str) -> None:
    with pytest.raises(SettingError, match=r"apache-2\.0, mit"):
        load_recipe("from-nothing", [f"license={license!r}"])


def test_no_licence_is_invented() -> None:
    recipes: list[Settings] = [*map(load_recipe, recipe_names()), BaseRecipe(), GeneratorRecipe()]
    recipes += [load_retriever_recipe(name, (), ["labels"]) for name in retriever_recipe_names()]
    assert {str(getattr(recipe, "license", None)) for recipe in recipes} == {"unknown"}
    assert load_recipe("from-nothing", ["license=apache-2.0"]).license == "apache-2.0"


def test_the_settings_in_a_card_make_the_same_recipe(tmp_path: Path) -> None:
    for name in recipe_names():
        recipe = load_recipe(name, ["rl.policy.optimizer.lr=0.1", "seed=3"])
        assert make_settings(type(recipe), changed_settings(recipe)) == recipe, name
    for name in recipe_names():
        for preset in preset_names(name):
            chosen = load_recipe(name, [f"preset={preset}"])
            write_yaml(tmp_path / "recipe.yaml", changed_settings(chosen))
            assert load_recipe(str(tmp_path / "recipe.yaml")) == chosen, (name, preset)
    both = load_together_recipe("laptop", ["agent.preset=paper"])
    write_yaml(tmp_path / "recipe.yaml", changed_settings(both))
    assert load_together_recipe(str(tmp_path / "recipe.yaml")) == both
    for name in retriever_recipe_names():
        encoder = load_retriever_recipe(name, ["training.lora={rank: 4}"], ["labels"])
        assert make_settings(RetrieverRecipe, changed_settings(encoder)) == encoder, name
    base = make_settings(BaseRecipe, {"sft": {"learner": {"optimizer": {"lr": 1e-3}}}, "laptop": {"kernel": 3}})
    assert changed_settings(base) == {"sft": {"learner": {"optimizer": {"lr": 1e-3}}}, "laptop": {"kernel": 3}}
    assert make_settings(BaseRecipe, changed_settings(base)) == base


def test_a_card_for_others_holds_no_path_or_password_of_this_machine() -> None:
    tree = {"folder": "/data/me/models/Qwen", "labels /data/me/labels/one": "x", "url": "http://me:secret@host/v1"}
    assert shared({**tree, "several": ["~/a/b/c", "runs/x", "/top"]}) == {
        "folder": "…/models/Qwen",
        "labels …/labels/one": "x",
        "url": "http://…@host/v1",
        "several": ["…/b/c", "runs/x", "/top"],
    }


def test_a_base_model_is_named_only_where_a_file_tells(tmp_path: Path) -> None:
    plain = tmp_path / "Qwen3-0.6B"
    plain.mkdir()
    assert base_model_of(str(plain), plain) is None
    (plain / FILE).write_text("---\nbase_model: some/other\n---\n# Theirs\n")  # of the model it was itself made from
    assert base_model_of(str(plain), plain) is None
    (plain / ".pulled.yaml").write_text("repo: Qwen/Qwen3-0.6B\n")
    assert base_model_of(str(plain), plain) == "Qwen/Qwen3-0.6B"
    cached = tmp_path / "models--Qwen--Qwen3-0.6B" / "snapshots" / "0123"
    assert base_model_of(str(cached), cached) == "Qwen/Qwen3-0.6B"
    assert base_model_of("minilm", tmp_path) == "sentence-transformers/all-MiniLM-L6-v2"
    ours = tmp_path / "ours"
    ours.mkdir()
    ModelCard(kind="policy", title="t", about="", base_model="Qwen/Qwen3-0.6B").write(ours)
    assert base_model_of(str(ours), ours) == "Qwen/Qwen3-0.6B"


def test_a_broken_front_matter_is_refused_and_a_card_without_one_is_read(tmp_path: Path) -> None:
    assert read_card(tmp_path) is None
    (tmp_path / FILE).write_text("# Only text\n\n---\n")
    assert read_card(tmp_path) == ({}, "# Only text\n\n---\n")
    for broken in ("---\n- a\n---\n", "---\na: [\n---\n"):
        (tmp_path / FILE).write_text(broken)
        with pytest.raises(DataError, match=r"README\.md"):
            read_card(tmp_path)
