#!/bin/sh
# SPDX-License-Identifier: MIT
# Makes an environment in which SGLang's token receiver and its Qwen-VL processor run on a CPU, without SGLang's compiled
# parts: SGLang's wheel and the few modules it imports, on top of an environment made by vllm_env.sh, which has
# torch 2.14.0 (SGLang requires 2.14.1) and the rest. Needs 1.4 GB.
# Usage: sglang_env.sh DIR VLLM_DIR; then, with the wheel's folder in PYTHONPATH: DIR/run sglang_receiver.py CLIP
set -eu
dir=${1:?usage: sglang_env.sh DIR VLLM_DIR} vllm=$(cd "${2:?usage: sglang_env.sh DIR VLLM_DIR}" && pwd)
"$vllm/bin/python" -m venv --without-pip "$dir"
dir=$(cd "$dir" && pwd)
"$vllm/bin/python" -m pip --python "$dir/bin/python" install -q --disable-pip-version-check --no-deps sglang==0.5.23 \
    transformers==5.19.0 tokenizers==0.23.2 triton==3.9.0 compressed-tensors==0.18.0 sentencepiece==0.2.1 loguru==0.7.3 \
    dill==0.4.1 ipython==9.18.1 traitlets==5.16.1
of() {
    "$1/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))'
}
of "$vllm" > "$(of "$dir")/vllm.pth"
sed "s|$vllm/bin/python|$dir/bin/python|" "$vllm/run" > "$dir/run"
chmod +x "$dir/run"
