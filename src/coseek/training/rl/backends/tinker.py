"""Tinker: a server of the Tinker protocol samples and trains a LoRA adapter; losses and advantages are coseek's.

The network of the recipe stays in this process: the server's base model is compared with it, and what the server learnt
is merged into it when the policy is saved. Precision, micro-batches and parallelism are the server's.
"""

import io
import tarfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeAlias, TypeVar

from pydantic import Field

from coseek.core.connections import parse_base_url
from coseek.core.errors import MissingExtra, ModelError, SettingError
from coseek.core.files import JsonObject, parse_line
from coseek.core.http import HttpClient, HttpFailure, HttpSettings, read_key
from coseek.core.settings import Settings, VariableName, make_settings
from coseek.hardware.device import processes_here
from coseek.training.rl.algorithm import open_algorithm
from coseek.training.rl.settings import RlSettings

if TYPE_CHECKING:
    from concurrent.futures import Future

    from tinker import SamplingClient, TrainingClient
    from torch import Tensor
    from transformers import PreTrainedModel

    from coseek.models.model import Tokenizer
    from coseek.models.sampler import SamplerSettings
    from coseek.training.learner.settings import LoraSettings
    from coseek.training.learner.workers import Workers
    from coseek.training.rl.tinker_policy import TinkerReference, TinkerSampler

# Tinker client: a connection to a server of Thinking Machines' Tinker protocol, through their library `tinker`.

T = TypeVar("T")
Reduction: TypeAlias = Literal["sum", "mean"]
MOST_BYTES = 1 << 34
"""Limit of an adapter's archive."""
KEYLESS = "tml-none"
"""Sent if no key is set: the library requires a key of this form."""
ALPHA = 32.0
"""Servers scale adapters by this / rank; the protocol has no field for it."""


class TinkerSettings(Settings):
    """A server of the Tinker protocol (`rl.backend_settings`)."""

    url: str
    """Its address."""
    reduction: Reduction
    """How it reduces token losses: `sum` (Thinking Machines' service), or `mean` over the tokens of a row and then over
    rows (SkyRL's JAX back end). Advantages are scaled by it, so that the recipe's loss_agg_mode holds."""
    base_model: str | None = None
    """The model's name at the server; optional if it has only one."""
    key_env: VariableName | None = None
    """The environment variable with the server's key, which is stored nowhere."""
    concurrency: int = Field(default=64, ge=1)
    """Rows that are sampled at once."""


class TinkerClient:
    """Opens what a run uses of a server. Raises `SettingError` if it cannot be reached or has no such model."""

    def __init__(self, settings: TinkerSettings) -> None:
        import tinker

        self.url = parse_base_url(settings.url)
        _check_reachable(self.url)
        key = read_key(settings.key_env) if settings.key_env else KEYLESS
        with self.errors():
            self._service = tinker.ServiceClient(base_url=self.url, api_key=key)
            models = self._service.get_server_capabilities().supported_models
        names = [str(model.model_name) for model in models]
        if settings.base_model not in names and (settings.base_model is not None or len(names) != 1):
            raise SettingError(
                f"{self.url} has no model {settings.base_model!r}; name one with rl.backend_settings.base_model: "
                f"{', '.join(names[:20])}"
            )
        self.base_model = settings.base_model or names[0]

    @contextmanager
    def errors(self) -> Iterator[None]:
        """Raise `ModelError` for what the library raises in the block."""
        import tinker

        try:
            yield
        except (tinker.TinkerError, ValueError) as error:
            raise ModelError(f"{self.url}: {' '.join(str(error).split())[:500]}") from None

    def wait(self, submit: "Callable[[], Future[T]]") -> T:
        """Submit a request and wait for its result."""
        with self.errors():
            return submit().result()

    def new_adapter(self, lora: "LoraSettings") -> "TrainingClient":
        """Create a LoRA adapter of the base model to train."""
        with self.errors():
            return self._service.create_lora_training_client(
                self.base_model, rank=lora.rank, seed=lora.seed, train_unembed=False
            )

    def base_sampler(self) -> "SamplingClient":
        """Return a sampler of the base model, without an adapter."""
        with self.errors():
            return self._service.create_sampling_client(base_model=self.base_model)

    def download(self, path: str) -> "tuple[dict[str, Tensor], JsonObject]":
        """Download the weights and the settings of an adapter that was saved at `path`, in the format of `peft`."""
        from safetensors.torch import load

        run, _, checkpoint = path.removeprefix("tinker://").partition("/")
        rest_client = self._service.create_rest_client()
        url = str(self.wait(lambda: rest_client.get_checkpoint_archive_url(run, checkpoint)).url)
        try:
            with closing(HttpClient(url, name=self.url, most_bytes=MOST_BYTES)) as calls:
                archive_bytes = calls.fetch("GET", "")
        except HttpFailure as error:
            raise ModelError(str(error)) from None
        try:
            with tarfile.open(fileobj=io.BytesIO(archive_bytes)) as archive:
                weights = _read_member(archive, "adapter_model.safetensors")
                settings = _read_member(archive, "adapter_config.json")
        except (tarfile.TarError, KeyError) as error:
            raise ModelError(f"{self.url}: the archive of {path} holds no adapter ({error})") from None
        return load(weights), parse_line(settings, f"adapter_config.json of {path}")


def _read_member(archive: tarfile.TarFile, name: str) -> bytes:
    """Read a file of the archive, in any of its folders. Raises `KeyError` without one."""
    for member in archive:
        if member.name.rpartition("/")[2] == name and (file := archive.extractfile(member)) is not None:
            return file.read()
    raise KeyError(name)


def _check_reachable(url: str) -> None:
    """Raise `SettingError` if no server answers: the library would retry for minutes."""
    try:
        with closing(HttpClient(url, HttpSettings(attempts=1))) as calls:
            calls.fetch("GET", "/api/v1/healthz")
    except HttpFailure as error:
        if error.status is None:
            raise SettingError(f"{error}; start the Tinker server, or check rl.backend_settings.url") from None


SETTINGS = TinkerSettings
CHECKED_TOKENS = 48
"""Tokens on which the server's base model is compared with the recipe's policy."""


def check(settings: RlSettings) -> None:
    """Raise `SettingError` for settings that the protocol does not support."""
    lora, optimizer = settings.policy.lora, settings.policy.optimizer
    critic = open_algorithm(settings).needs_critic
    for is_unsupported, reason in (
        (processes_here() > 1, f"it trains for one process and not for {processes_here()}; start without torchrun"),
        (lora is None, "rl.policy.lora=null trains all weights; set rl.policy.lora.rank"),
        (lora and lora.target_modules, "rl.policy.lora.target_modules adapts some layers; leave it out to adapt all"),
        (lora and lora.alpha != ALPHA, f"rl.policy.lora.alpha is not {ALPHA:g}, which servers scale by"),
        (critic, f"rl.algorithm={settings.algorithm} trains a critic; take grpo, rloo or reinforce-pp"),
        (
            settings.entropy_coef > 0.0,
            f"rl.entropy_coef={settings.entropy_coef:g} needs whole distributions; set it to 0",
        ),
        (settings.measure_entropy, "rl.measure_entropy=true needs whole distributions; set it to false"),
        (settings.temperature != 1.0, f"rl.temperature={settings.temperature:g} trains scaled logits; set it to 1"),
        (settings.top_p != 1.0, f"rl.top_p={settings.top_p:g} trains a part of the softmax; set it to 1"),
        (optimizer.algorithm != "adamw", f"rl.policy.optimizer.algorithm={optimizer.algorithm}; take adamw"),
        (optimizer.max_grad_norm, f"rl.policy.optimizer.max_grad_norm={optimizer.max_grad_norm:g} clips; set it to 0"),
    ):
        if is_unsupported:
            raise SettingError(f"a Tinker server cannot do this: {reason}, or take rl.backend=local")
    if find_spec("tinker") is None:
        raise MissingExtra("tinker", "rl.backend=tinker", "tinker")


def make(network: "PreTrainedModel", settings: RlSettings, workers: "Workers") -> "TinkerBackend":
    """Connect to the server. Raises `SettingError` if its base model is not the policy that the run starts from."""
    return TinkerBackend(network, settings, workers)


class TinkerBackend:
    """Implements `TrainingBackend`."""

    critic = None

    def __init__(self, network: "PreTrainedModel", settings: RlSettings, workers: "Workers") -> None:
        from coseek.training.learner.policy import Policy
        from coseek.training.rl.tinker_policy import TinkerPolicy, TinkerReference

        self.settings = make_settings(TinkerSettings, settings.backend_settings)
        self.workers = workers
        self._client = TinkerClient(self.settings)
        self._twin = Policy(network, settings.policy, 0)
        """Holds an adapter of the same shape, which receives the server's weights when the policy is saved."""
        self._samplers: list[TinkerSampler] = []
        base = TinkerReference(self._client)
        self._check_base(base, settings.monitor.logprob_gap)
        self.reference = base if settings.kl_coef > 0.0 else None
        self.policy = TinkerPolicy(self._client, settings.policy, settings.total_updates, self.settings.reduction)
        self._saved = 0

    def sampler(
        self, tokenizer: "Tokenizer", stops: Sequence[str], settings: "SamplerSettings", *, on_policy: bool = True
    ) -> "TinkerSampler":
        from coseek.training.rl.tinker_policy import TinkerSampler

        self._samplers.append(TinkerSampler(tokenizer, stops, settings.temperature, self.settings.concurrency))
        return self._samplers[-1]

    def release(self) -> None:
        """Do nothing: the server has the caches."""

    def refresh(self) -> None:
        with self._client.errors():
            weights = self.policy.adapter.save_weights_and_get_sampling_client()
        for sampler in self._samplers:
            sampler.use(weights, self.policy.updates_done)

    def save(self, folder: Path, extra: Callable[[Path], None] | None = None) -> None:
        """Write the network with the server's adapter. Raises `ModelError` if that is of another shape."""
        import torch

        from coseek.training.learner.policy import adapter_tensors

        weights = self.adapter_weights()
        with torch.no_grad():
            for name, weight in adapter_tensors(self._twin.model).items():
                weight.copy_(weights[name])
        self._twin.save(folder, extra)

    def adapter_weights(self) -> "dict[str, Tensor]":
        """Download the weights of the adapter. Raises `ModelError` if they do not fit the network."""
        from coseek.training.learner.policy import adapter_tensors

        self._saved += 1
        name = f"policy-{self.policy.updates_done:06}-{self._saved}"
        path = str(self._client.wait(lambda: self.policy.adapter.save_weights_for_sampler(name)).path)
        weights, config = self._client.download(path)
        expected_shapes, received_shapes = (
            {name: weight.shape for name, weight in adapter.items()}
            for adapter in (adapter_tensors(self._twin.model), weights)
        )
        if expected_shapes != received_shapes or config.get("lora_alpha") != ALPHA:
            raise ModelError(
                f"{self._client.url} adapted other layers than all linear ones with alpha {ALPHA:g}, so they cannot be "
                f"merged here; the adapter is at {path}"
            )
        return weights

    def _check_base(self, base: "TinkerReference", max_gap: float) -> None:
        import torch

        from coseek.training.learner.batch import Batch

        generator = torch.Generator().manual_seed(0)
        ids_BT = torch.randint(
            self._twin.model.config.get_text_config().vocab_size, (1, CHECKED_TOKENS), generator=generator
        )
        zeros_BT = torch.zeros(ids_BT.shape)
        batch = Batch(ids_BT, zeros_BT.bool(), zeros_BT, torch.tensor([CHECKED_TOKENS]))
        mask_BT = batch.predicted_BT
        gap = float((base.forward(batch, mask_BT) - self._twin.forward(batch, mask_BT))[mask_BT].abs().mean())
        if not gap <= max_gap:
            raise SettingError(
                f"the log-probabilities of {self._client.base_model} at {self._client.url} are {gap:.3g} from those of "
                f"the policy that the run starts from, more than {max_gap:g}; serve that policy's folder"
            )
