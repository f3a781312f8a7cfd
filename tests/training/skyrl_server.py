"""SkyRL's Tinker server with its JAX back end, started without `uv`, in the environment of `make engine-tinker`.

    python tests/training/skyrl_server.py --port 8800 --base-model FOLDER --backend jax --backend-config '{…}'

SkyRL 0.3.0 starts its engine through `uv run`, and declares a `TypedDict` that pydantic takes from Python 3.12 on only.
"""

import argparse
import runpy
import sys
import typing

import typing_extensions

typing.TypedDict = typing_extensions.TypedDict


def main() -> None:
    if sys.argv[1:2] == ["engine"]:
        del sys.argv[1]
        runpy.run_module("skyrl.tinker.engine", run_name="__main__", alter_sys=True)
        return
    import uvicorn
    from skyrl.tinker import api
    from skyrl.tinker.config import EngineConfig, add_model, config_to_argv

    parser = argparse.ArgumentParser()
    add_model(parser, EngineConfig)
    parser.add_argument("--port", type=int, required=True)
    given = vars(parser.parse_args())
    port = given.pop("port")
    api._build_uv_run_cmd_engine = lambda _, config: [sys.executable, __file__, "engine", *config_to_argv(config)]
    api.app.state.engine_config = EngineConfig.model_validate(given)
    uvicorn.run(api.app, host="127.0.0.1", port=port, log_level="warning")


if __name__ == "__main__":
    main()
