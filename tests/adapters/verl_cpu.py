"""verl on a processor: a platform and a sampler that its own extension points take, so that its trainer runs in tests.

`VERL_USE_EXTERNAL_MODULES=tests.adapters.verl_cpu VERL_PLATFORM=processor` has every process of verl import it.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import ray
import torch
from verl.plugin.platform.platform_base import PlatformBase
from verl.plugin.platform.platform_manager import PlatformRegistry
from verl.workers.rollout.base import _ROLLOUT_REGISTRY, BaseRollout
from verl.workers.rollout.replica import RolloutReplica, RolloutReplicaRegistry, TokenOutput

NAME = "processor"


class _Module:
    """`torch.cpu`, with the calls of `torch.cuda` that have nothing to do here."""

    def __getattr__(self, name: str) -> object:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(torch.cpu, name, lambda *_, **__: 0)


@PlatformRegistry.register(platform=NAME)
class Processor(PlatformBase):
    """A processor as a device of verl's."""

    device_name = "cpu"
    vendor_name = NAME
    device_module = _Module()

    def is_available(self) -> bool:
        return True

    def current_device(self) -> object:
        return torch.device("cpu")

    def device_count(self) -> int:
        return 1

    def set_device(self, device_index: object) -> None: ...

    def synchronize(self, device_index: object = None) -> None: ...

    def manual_seed(self, seed: int) -> None:
        torch.manual_seed(seed)

    def manual_seed_all(self, seed: int) -> None:
        torch.manual_seed(seed)

    def set_allocator_settings(self, settings: str) -> None: ...

    def empty_cache(self) -> None: ...

    def get_device_capability(self, device_index: int = 0) -> tuple[None, None]:
        return None, None

    def communication_backend_name(self) -> str:
        return "gloo"

    def visible_devices_envvar(self) -> str:
        return "COSEEK_NO_DEVICES"

    @contextmanager
    def nvtx_range(self, msg: str) -> Iterator[None]:
        yield

    def profiler_start(self) -> None: ...

    def profiler_stop(self) -> None: ...

    def ray_resource_name(self) -> str:
        return "GPU"  # the only resource that verl counts: Ray is told of one

    def ray_noset_envvars(self) -> list[str]:
        return []

    def is_ipc_supported(self) -> bool:
        return False

    def cudart(self) -> None: ...


@ray.remote(num_cpus=0)
class SamplerServer:
    """coseek's own sampler as a server of verl's, with the weights that it was sent last."""

    def __init__(self, folder: str, temperature: float) -> None:
        from pathlib import Path

        from coseek.models.pretrained import load_model
        from coseek.models.tokenizer import HfTokenizer

        self.model, self.tokenizer = load_model(Path(folder)), HfTokenizer.load(Path(folder))
        self.temperature, self.steps, self.served = temperature, 0, 0

    async def generate(
        self, prompt_ids: Sequence[int], sampling_params: dict[str, object], request_id: str, **_: object
    ) -> TokenOutput:
        from coseek.models.model import Request
        from coseek.models.sampler import Sampler, SamplerSettings

        settings = SamplerSettings(temperature=sampling_params["temperature"], max_rows=1)
        sampler = Sampler(self.model, self.tokenizer, tuple(sampling_params["stop"]), settings)
        self.served += 1
        asked = Request(0, tuple(prompt_ids), sampling_params["max_tokens"], sampling_params["seed"], STATE)
        sampler.start(asked)
        (turn,) = sampler.step()
        fields = {"global_steps": self.steps}
        return TokenOutput(token_ids=turn.ids, log_probs=turn.logprobs, stop_reason="completed", extra_fields=fields)

    def load(self, weights: dict[str, torch.Tensor], steps: int) -> None:
        self.model.load_state_dict(weights, strict=False)
        self.steps = steps

    def wake_up(self) -> None: ...

    def sleep(self) -> None: ...

    def abort_all_requests(self, **_: object) -> None: ...

    def resume_generation(self) -> None: ...

    def clear_kv_cache(self) -> None: ...

    def release_kv_cache(self) -> None: ...

    def resume_kv_cache(self) -> None: ...


class SamplerReplica(RolloutReplica):
    async def launch_servers(self) -> None:
        options = {"name": f"{NAME}-{self.replica_rank}"}
        server = SamplerServer.options(**options).remote(self.model_config.path, self.config.temperature)
        self.servers, self._server_handle, self._server_address = [server], server, options["name"]


class SamplerRollout(BaseRollout):
    async def resume(self, tags: list[str]) -> None: ...

    async def release(self) -> None: ...

    async def update_weights(
        self, weights: Iterator[tuple[str, torch.Tensor]], global_steps: int = 0, **_: object
    ) -> None:
        whole = {name: value.detach().cpu().clone() for name, value in weights}
        await ray.get_actor(f"{NAME}-0").load.remote(whole, global_steps)


RolloutReplicaRegistry.register(NAME, lambda: SamplerReplica)
_ROLLOUT_REGISTRY[NAME, "async"] = f"{__name__}.SamplerRollout"


def _state() -> object:
    from coseek.data.question import Question
    from coseek.models.model import EpisodeState

    return EpisodeState(Question("none", "?"))


STATE = _state()


def _start_group(*args: object, backend: str = "gloo", **named: object) -> None:
    """verl names a backend for processors and one for its device, which are the same here."""
    _START_GROUP(*args, backend=backend.removeprefix("cpu:gloo,cpu:"), **named)


_START_GROUP = torch.distributed.init_process_group
torch.distributed.init_process_group = _start_group
