from coseek.data.passage import Hit, Passage
from coseek.data.question import Question
from coseek.data.trajectory import Search, StopReason, Trajectory
from coseek.measure.retrieval import fused


def test_what_several_searches_found_is_ranked_before_what_one_found() -> None:
    hits = {name: Hit(Passage(name, "", ""), 1.0) for name in "abc"}
    searches = (
        Search("one", (hits["a"], hits["b"])),
        Search("failed", fault="down"),
        Search("two", (hits["c"], hits["b"])),
    )
    run = Trajectory(Question("q", "?"), "search-r1", (), searches, StopReason.ANSWERED)
    assert fused(run) == ["b", "a", "c"]
