"""Rollouts by a real vLLM on a CPU, in a separate environment: `make test-vllm`."""

import os
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import httpx
import pytest
import torch
from tests.models.tiny_policy import tiny_policy
from tests.serve.live import WEB
from tests.training.test_rollout_servers import Training
from transformers import LlamaConfig, LlamaForCausalLM

from coseek.models.pretrained import save_model
from coseek.models.tokenizer import HfTokenizer
from coseek.serve.service import bound

PYTHON = os.environ.get("COSEEK_VLLM_PYTHON", "")
pytestmark = [pytest.mark.slow, pytest.mark.skipif(not PYTHON, reason="make test-vllm")]
MODES = {
    "VLLM_SERVER_DEV_MODE": "1", "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1", "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind", "VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1",
}  # fmt: skip
STARTS_S = 600


def tiny_llama(folder: Path) -> Path:
    """A policy of an architecture that vLLM runs on a processor, with random weights."""
    tokenizer = HfTokenizer.load(tiny_policy(folder / "tokenizer"))
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=320, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=2, max_position_embeddings=2048, eos_token_id=tokenizer.eos_id, bos_token_id=None,
        pad_token_id=0,
    )  # fmt: skip
    network = LlamaForCausalLM(config)
    with torch.no_grad():
        for weight in network.parameters():
            if weight.ndim > 1:
                weight.normal_(std=0.2)
    save_model(network, tokenizer, folder / "policy")
    return folder / "policy"


@contextmanager
def engine(command: Sequence[str], health: str, log: Path, modes: Mapping[str, str]) -> Iterator[str]:
    """The URL of a server on a free port, whose processes are terminated after the block."""
    with bound("127.0.0.1", 0) as free:
        port = free.getsockname()[1]
    url, ends = f"http://127.0.0.1:{port}", time.monotonic() + STARTS_S
    with log.open("wb") as out:
        process = subprocess.Popen([*command, "--port", str(port)], env={**os.environ, **modes}, stdout=out, stderr=out)
        try:
            while not answers(f"{url}{health}"):
                assert process.poll() is None and time.monotonic() < ends, log.read_text()[-2000:]
                time.sleep(0.5)
            yield url
        finally:
            process.terminate()
            process.wait(120)


def answers(url: str) -> bool:
    try:
        return WEB.get(url).status_code == 200
    except httpx.TransportError:
        return False


def vllm(policy: Path, *more: str) -> AbstractContextManager[str]:
    command = [PYTHON, "-m", "vllm.entrypoints.openai.api_server", "--model", str(policy)]
    command += ["--served-model-name", "policy", "--host", "127.0.0.1", "--dtype", "float32"]
    command += ["--enforce-eager", "--max-model-len", "1024", "--max-num-seqs", "16", *more]
    return engine(command, "/v1/models", policy.parent / "vllm.log", MODES)


@pytest.mark.parametrize("lora", [False, True])
def test_vllm_samples_with_the_weights_of_every_step(lora: bool, tmp_path: Path) -> None:
    policy = tiny_llama(tmp_path / "shared")
    learner = {"optimizer": {"lr": 0.02, "warmup_updates": 0}, "precision": "float32"}
    more = ["--enable-lora", "--max-lora-rank", "8"] if lora else []
    with vllm(policy, *more) as url:
        training = Training(
            tmp_path / "run", policy, [url], steps=4, policy={**learner, **({"lora": {"rank": 8}} if lora else {})}
        )
        rows = training.train()
    assert [row["faults"] for row in rows] == [0] * 4
    assert [row["logprob_gap"] < 1e-3 for row in rows] == [True] * 4, rows
    versions = [{segment.version for run in runs for segment in run.segments} - {None} for runs in training.runs]
    assert versions == [{0}, {1}, {2}, {3}]
