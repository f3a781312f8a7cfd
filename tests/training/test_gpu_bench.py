"""The bench of a step on a GPU, in small on a processor."""

import pytest
from bench.gpu import COLUMNS, main


@pytest.mark.slow
def test_the_bench_of_a_gpu_runs_a_whole_step_on_a_processor_and_its_shares_add_up(
    capsys: pytest.CaptureFixture[str],
) -> None:
    main(["--device", "cpu", "--shape", "tiny", "--repeats", "1"])
    lines = capsys.readouterr().out.splitlines()
    above, place = next(line for line in lines if "M weights" in line), lines.index(COLUMNS)
    assert above.startswith("0.1 M weights, 10 runs; large matrix products: ")
    peak = float(above.split()[-2])
    parts = {cells[1]: cells[2:] for cells in map(str.split, lines[place + 1 : place + 6])}
    assert list(parts) == ["sampler", "generate", "rollouts", "reference", "update"]
    # Ten runs of three turns of eight tokens and two documents, after prompts of 200.
    tokens = {part: int(cells[0].replace(",", "")) for part, cells in parts.items()}
    assert tokens == {"sampler": 80, "generate": 80, "rollouts": 240, "reference": 2400, "update": 2400}
    for part, (_, seconds, rate, done, share) in parts.items():
        assert float(seconds) > 0 and float(rate.replace(",", "")) > 0
        assert (done == "–") is (part not in ("reference", "update"))
        if done != "–":
            assert 0 < float(done) < peak
            assert float(share.rstrip("%")) == pytest.approx(100 * float(done) / peak, rel=0.2, abs=0.2)
    assert lines[place + 6].startswith("sampler / generate: ")


def test_a_setting_that_the_recipe_lacks_is_one_sentence_of_the_bench() -> None:
    with pytest.raises(SystemExit, match=r"no setting named 'rl\.grup_size'"):
        main(["--device", "cpu", "--shape", "tiny", "rl.grup_size=3"])
