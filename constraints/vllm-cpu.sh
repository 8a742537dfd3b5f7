#!/bin/sh
# Start a command in the environment that `make vllm` made (PRACTICUM_VLLM, or .venv-vllm), as vLLM on a CPU wants it:
# Intel's OpenMP has to be there before Python is. PyTorch gains by it, too.
#
#   constraints/vllm-cpu.sh practicum train recipes/retail.toml --set sampler.kind=vllm
set -eu
env=${PRACTICUM_VLLM:-$(dirname "$0")/../.venv-vllm}
if [ ! -x "$env/bin/python" ]; then
    echo "$0: there is no environment in $env; say: make vllm" >&2
    exit 2
fi
env=$(cd "$env" && pwd)
if [ -f "$env/lib/libiomp5.so" ]; then
    export LD_PRELOAD="$env/lib/libiomp5.so${LD_PRELOAD:+:$LD_PRELOAD}"
fi
export PATH="$env/bin:$PATH"
exec "$@"
