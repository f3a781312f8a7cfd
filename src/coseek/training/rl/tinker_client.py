"""Tinker client: a connection to a server of Thinking Machines' Tinker protocol, through their library `tinker`."""

import io
import tarfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Literal, TypeAlias, TypeVar

from pydantic import Field

from coseek.core.connections import parse_base_url
from coseek.core.errors import ModelError, SettingError
from coseek.core.files import JsonObject, parse_line
from coseek.core.http import HttpClient, HttpFailure, HttpSettings, read_key
from coseek.core.settings import Settings, VariableName

if TYPE_CHECKING:
    from concurrent.futures import Future

    from tinker import SamplingClient, TrainingClient
    from torch import Tensor

    from coseek.training.trainer.settings import LoraSettings

T = TypeVar("T")
Reduction: TypeAlias = Literal["sum", "mean"]
MOST_BYTES = 1 << 34
"""Limit of an adapter's archive."""
KEYLESS = "tml-none"
"""Sent where no key is named: the library wants one of this form."""
ALPHA = 32.0
"""The protocol has no field for it: servers scale adapters by this / rank."""


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
        key = read_key(settings.key_env)
        with self.asked():
            self._service = tinker.ServiceClient(base_url=self.url, api_key=key or KEYLESS)
            models = self._service.get_server_capabilities().supported_models
        names = [str(one.model_name) for one in models]
        if settings.base_model not in names and (settings.base_model is not None or len(names) != 1):
            raise SettingError(
                f"{self.url} has no model {settings.base_model!r}; name one with rl.backend_settings.base_model: "
                f"{', '.join(names[:20])}"
            )
        self.base_model = settings.base_model or names[0]

    @contextmanager
    def asked(self) -> Iterator[None]:
        """Raise `ModelError` for what the library raises in the block."""
        import tinker

        try:
            yield
        except (tinker.TinkerError, ValueError) as error:
            raise ModelError(f"{self.url}: {' '.join(str(error).split())[:500]}") from None

    def wait(self, ask: "Callable[[], Future[T]]") -> T:
        """Ask for something and wait for it."""
        with self.asked():
            return ask().result()

    def new_adapter(self, lora: "LoraSettings") -> "TrainingClient":
        """A new LoRA adapter of the base model, in training."""
        with self.asked():
            return self._service.create_lora_training_client(
                self.base_model, rank=lora.rank, seed=lora.seed, train_unembed=False
            )

    def base_sampler(self) -> "SamplingClient":
        """The base model, without an adapter."""
        with self.asked():
            return self._service.create_sampling_client(base_model=self.base_model)

    def download(self, path: str) -> "tuple[dict[str, Tensor], JsonObject]":
        """The weights and the settings of an adapter that was saved at `path`, as the library `peft` names them."""
        from safetensors.torch import load

        run, _, checkpoint = path.removeprefix("tinker://").partition("/")
        rest = self._service.create_rest_client()
        url = str(self.wait(lambda: rest.get_checkpoint_archive_url(run, checkpoint)).url)
        calls = HttpClient(url, name=self.url, most_bytes=MOST_BYTES)
        try:
            packed = calls.fetch("GET", "")
        except HttpFailure as error:
            raise ModelError(str(error)) from None
        finally:
            calls.close()
        try:
            with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
                weights = _member(archive, "adapter_model.safetensors")
                settings = _member(archive, "adapter_config.json")
        except (tarfile.TarError, KeyError) as error:
            raise ModelError(f"{self.url}: the archive of {path} holds no adapter ({error})") from None
        return load(weights), parse_line(settings, f"adapter_config.json of {path}")


def _member(archive: tarfile.TarFile, name: str) -> bytes:
    """The bytes of a file of the archive, in whichever folder. Raises `KeyError` without one."""
    for one in archive:
        file = archive.extractfile(one) if one.isfile() and one.name.rpartition("/")[2] == name else None
        if file is not None:
            return file.read()
    raise KeyError(name)


def _check_reachable(url: str) -> None:
    """Raise `SettingError` where no server answers: the library would go on trying for minutes."""
    calls = HttpClient(url, HttpSettings(attempts=1))
    try:
        calls.fetch("GET", "/api/v1/healthz")
    except HttpFailure as error:
        if error.status is None:
            raise SettingError(f"{error}; start the Tinker server, or check rl.backend_settings.url") from None
    finally:
        calls.close()
