"""What one short session on a GPU can show, unattended: `make gpu`, nine minutes at most, nothing fetched.

    python -m bench.gpu_session --out DIR             all stages
    python -m bench.gpu_session --out DIR warm grpo   some
    python -m bench.gpu_session --out DIR --rehearse  seconds to minutes on a processor, with the shipped base model

`checks`: the quick tests that see the device. `engine`: `bench.gpu` at the shapes of SmolLM2, 0.5 B and 1.5 B. `warm`:
the recipe `smollm` on the pool. `grpo`: `search-r1-grpo preset=smollm` from it with 64 × 8 runs a step, and its table.
A stage that outlasts its time is interrupted as by Ctrl-C; a training has then saved its step, and its curve is there.

Written are a log of each stage, `metrics.jsonl` and `table.md` of the trainings, and `session.json`; 16 MB at most. The
model folder (`make smollm`) and the pool must be there. Where files can only be brought in parts of 64 MB, bring
build/smollm with its GGUF file split in two, put it together, and run `python -m bench.smollm build/smollm`.
"""

import argparse
import json
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

LARGEST = 16_000_000
"""Bytes of a file that is handed back; of a longer one the end."""
GRACE_S = 20
"""What a stage has to save its step after the interrupt."""
ON_GPU = (
    "device=cuda", "precision=bfloat16", "concurrency=512", "cache_gib=24", "machine={memory_gib: 80, tflops: 989}",
)  # fmt: skip
FEW = ("table.questions=8", "table.dev_questions=4", "concurrency=16")


@dataclass(frozen=True)
class Stage:
    """A command, the seconds that it may take, and the training folder that it writes."""

    name: str
    command: tuple[str, ...]
    seconds: float
    folder: str = ""


def stages(out: Path, rehearse: bool, steps: int) -> list[Stage]:
    """The stages, in order."""
    device = "cpu" if rehearse else "cuda"
    shapes = ("tiny",) if rehearse else ("smollm2", "0.5B", "1.5B")
    engine = [part for shape in shapes for part in ("--shape", shape)]
    learner = "{precision: bfloat16, micro_batch_tokens: 32000}"
    warm, grpo = (
        (
            ["policy={folder: base, add_tag_tokens: true}", "data.train=dev", "warm_start.sft={steps: 2}", *FEW],
            ["rl={steps: 1, questions_per_step: 2, group_size: 2}", *FEW],
        )
        if rehearse
        else (
            [f"warm_start.sft={{steps: 150, tokens_per_step: 16000, learner: {learner}}}", *ON_GPU],
            [f"rl={{steps: {steps}, questions_per_step: 64, group_size: 8, policy: {learner}}}", *ON_GPU],
        )
    )
    train = ("-m", "coseek", "train", "agent")
    start = f"policy.folder={out / 'warm' / 'policy' / 'warm'}"
    return [
        Stage("checks", ("-m", "pytest", "-q", "-m", "not slow", "tests/hardware", "tests/models"), 90),
        Stage("engine", ("-m", "bench.gpu", "--device", device, "--repeats", "2", *engine), 130),
        Stage("warm", (*train, "smollm", "--out", str(out / "warm"), *warm), 120, "warm"),
        Stage(
            "grpo", (*train, "search-r1-grpo", "preset=smollm", "--out", str(out / "grpo"), start, *grpo), 480, "grpo"
        ),
    ]


def main() -> int:
    args = _arguments()
    work, began = args.out / "work", time.monotonic()
    work.mkdir(parents=True, exist_ok=True)
    told: list[dict[str, object]] = []
    for stage in stages(work, args.rehearse, args.steps):
        if args.stages and stage.name not in args.stages:
            continue
        left = args.minutes * 60 - (time.monotonic() - began) - GRACE_S
        code, seconds = run(stage, args.out / f"{stage.name}.log", min(stage.seconds, left))
        told.append({"stage": stage.name, "seconds": round(seconds, 1), "exit": code})
        print(json.dumps(told[-1]), flush=True)
        hand_back(stage, work, args.out)
        (args.out / "session.json").write_text(json.dumps(told, indent=1), encoding="utf-8")
    return max((abs(int(str(one["exit"]))) for one in told), default=0)


def run(stage: Stage, log: Path, seconds: float) -> tuple[int, float]:
    """Run a stage into its log; interrupt it when its time is over. Returns its exit code and its seconds."""
    if seconds < GRACE_S:
        return 1, 0.0
    began = time.monotonic()
    with log.open("w", encoding="utf-8") as file:
        child = subprocess.Popen([sys.executable, *stage.command], stdout=file, stderr=subprocess.STDOUT)
        try:
            child.wait(seconds)
        except subprocess.TimeoutExpired:
            child.send_signal(signal.SIGINT)
            try:
                child.wait(GRACE_S)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()
    return child.returncode, time.monotonic() - began


def hand_back(stage: Stage, work: Path, out: Path) -> None:
    """Copy what a training wrote for people next to the logs."""
    if not stage.folder:
        return
    for path in sorted((work / stage.folder).glob("**/metrics.jsonl")):
        name = "-".join(path.relative_to(work).parts)
        (out / name).write_bytes(path.read_bytes()[-LARGEST:])
    if (table := work / stage.folder / "table.md").is_file():
        shutil.copyfile(table, out / f"{stage.name}-table.md")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    names: Sequence[str] = [stage.name for stage in stages(Path(), True, 0)]
    parser.add_argument("stages", nargs="*", choices=[*names, []], metavar="STAGE", help=f"of {', '.join(names)}")
    parser.add_argument("--out", type=Path, required=True, help="folder of the results")
    parser.add_argument("--minutes", type=float, default=9.0, help="for all stages together")
    parser.add_argument("--steps", type=int, default=24, help="updates of GRPO")
    parser.add_argument("--rehearse", action="store_true", help="tiny, on a processor")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
