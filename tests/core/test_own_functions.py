"""Functions as parts: which are identified by their source, and what their identity holds."""

from collections.abc import Callable, Iterator
from functools import partial
from types import FunctionType

import pytest

from coseek.core import plugins
from coseek.core.errors import SettingError
from coseek.core.plugins import check_takes, function_module, identify, offer

PRICE = 0.01
TABLE = {"a": [1, 2]}
MODEL = object()


def helper(x: float) -> float:
    return x * PRICE


def plain(x: float, weight: float = 2.0) -> float:
    return helper(x) * weight + len(TABLE)


def calls_itself(x: int) -> int:
    return 1 if x == 0 else calls_itself(x - 1)


def reads_an_object(x: float) -> float:
    return x if MODEL else 0.0


def closure(data: list[float]) -> Callable[[int], float]:
    def inside(x: int) -> float:
        return data[x]

    return inside


def typed_in() -> FunctionType:
    """A function without a source file, as if typed into an interpreter."""
    code = compile("def typed(x): return x", "<stdin>", "exec").co_consts[0]
    return FunctionType(code, {})


def test_a_function_is_the_same_in_another_process_and_another_with_other_code(monkeypatch: pytest.MonkeyPatch) -> None:
    digest, problem = identify(plain)
    assert digest and not problem and identify(plain) == (digest, "")
    monkeypatch.setitem(globals(), "PRICE", 0.02)  # read by a function that it calls
    assert identify(plain)[0] != digest
    monkeypatch.setitem(globals(), "PRICE", 0.01)
    monkeypatch.setattr(plain, "__defaults__", (3.0,))
    assert identify(plain)[0] not in ("", digest)
    assert identify(calls_itself)[0]


@pytest.mark.parametrize(
    ("function", "why"),
    [
        (lambda x: x, "it is a lambda"),
        (closure([1.0]), "it closes over data"),
        (reads_an_object, "it reads the global MODEL, of the class object"),
        (partial(plain, weight=1.0), "it is an object of the class partial"),
        (typed_in(), "the source of typed cannot be read"),
    ],
)
def test_a_function_that_its_source_does_not_identify_has_a_reason(function: object, why: str) -> None:
    digest, problem = identify(function)
    assert not digest and why in problem


async def later(query: str) -> str:
    return query


def one_by_one(query: str) -> Iterator[str]:
    yield query


class Later:
    async def __call__(self, query: str) -> str:
        return query


@pytest.mark.parametrize("function", [later, partial(later), one_by_one, Later()])
def test_a_function_whose_call_returns_no_result_is_refused_at_once(function: Callable[..., object]) -> None:
    with pytest.raises(SettingError, match="is async or a generator; write a plain function"):
        check_takes("reward", function, "query")
    check_takes("retriever", one_by_one, "query")  # a retriever may yield its hits


def test_a_function_is_a_part_under_its_name_until_another_takes_it() -> None:
    name = offer("reward", plain, {"reward": plain})
    assert name == "python:plain" and plugins.is_plugin_path(name) and plugins.plugin_name(name) == "plain"
    assert function_module("reward", name).reward is plain
    assert plugins.plugin_digests({"reward": {name: 1.0}, "other": ["x.py"]}) == {name: identify(plain)[0]}
    assert offer("reward", calls_itself, {}) == "python:calls_itself"
    with pytest.raises(SettingError, match=r"no algorithm called 'plain', only a function .*\(reward\)"):
        function_module("algorithm", name)
    plugins._own_functions.pop(name)
    with pytest.raises(SettingError, match="run that program again"):
        function_module("reward", name)
