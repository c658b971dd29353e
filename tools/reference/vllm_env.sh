#!/bin/sh
# SPDX-License-Identifier: MIT
# Makes an environment in which vLLM's chat parser, processors, video loaders and EC connector run on a CPU, without vLLM's
# compiled parts, and adds the proxy of vLLM's example, which only its source distribution has. torch's wheel needs CUDA's
# libraries even without a GPU; it gets the toolkit's in /usr/local/cuda. Needs Python 3.11 and 6 GB.
# Usage: vllm_env.sh DIR; then, with the wheel's folder in PYTHONPATH: DIR/run vllm_proxy.py DIR/disagg_epd_proxy.py CLIP
set -eu
dir=${1:?usage: vllm_env.sh DIR}
"${PYTHON:-python3.11}" -m venv "$dir"
dir=$(cd "$dir" && pwd)
pip="$dir/bin/python -m pip"
$pip install -q --disable-pip-version-check --no-deps vllm==0.33.0 torch==2.14.0 torchvision==0.29.0 nvidia-nccl-cu13==2.30.7 \
    nvidia-nvshmem-cu13==3.4.5 nvidia-cusparselt-cu13==0.8.1 nvidia-cufile==1.20.0.107 \
    transformers==5.20.2 tokenizers==0.23.3 huggingface_hub==2.4.0 hf-xet==1.8.0 safetensors==0.8.0 numpy==2.4.6 pillow==13.0.0 \
    opencv-python-headless==4.13.0.92 av==18.1.0 sympy==1.14.0 mpmath==1.3.0 networkx==3.6.1 jinja2==3.1.6 MarkupSafe==3.0.4 \
    fsspec==2026.9.0 filelock==4.3.1 typing_extensions==4.16.0 regex==2026.11.19 cachetools==8.0.2 psutil==7.2.2 requests==2.34.2 \
    urllib3==2.8.0 idna==3.20 charset-normalizer==3.5.3 certifi==2026.10.19.post1 tqdm==4.70.1 blake3==1.0.11 py-cpuinfo==9.0.0 \
    pydantic==2.14.4 pydantic_core==2.50.5 annotated-types==0.8.0 typing-inspection==0.4.5 orjson==3.13.0 msgspec==0.22.0 \
    pyyaml==6.0.4 einops==0.8.2 cloudpickle==3.1.3 pybase64==1.5.1 cbor2==6.3.0 openai==3.57.0 jiter==0.19.0 pyzmq==27.3.0 \
    setproctitle==1.3.8 python-json-logger==4.2.0 aiohttp==3.14.5 aiosignal==1.4.0 aiohappyeyeballs==2.7.1 attrs==26.1.0 \
    frozenlist==1.8.0 multidict==7.2.1 propcache==0.5.4 yarl==1.25.1 fastapi==0.165.0 starlette==1.10.0 annotated-doc==0.0.7 \
    anyio==4.16.0 sniffio==1.3.1 httpx2==2.16.2 httpcore2==2.16.2 truststore==0.10.5 h11==0.16.0 httptools==0.9.0 uvicorn==0.54.0 click==8.5.1 \
    uvloop==0.23.0 prometheus_client==0.26.0 partial-json-parser==0.2.1.1.post7 jsonschema==4.26.0 \
    jsonschema-specifications==2025.9.1 referencing==0.37.0 rpds-py==2026.9.1 lark==1.3.1 diskcache==5.6.3 gguf==0.18.0 \
    opentelemetry-api==1.45.2 oss-harmony==0.0.11 xgrammar==0.2.8 apache-tvm-ffi==0.1.11 llguidance==1.9.1 packaging==26.4 \
    typer==0.29.2 shellingham==1.5.4 rich==15.0.0 markdown-it-py==4.3.0 mdurl==0.1.2 Pygments==2.21.0 \
    setuptools==80.10.2 setuptools-scm==10.3.4 vcs-versioning==2.6.0 setuptools-rust==1.13.0 semantic-version==2.10.0 wheel==0.48.0
site=$("$dir/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
libs=/usr/local/cuda/lib64:/usr/local/cuda/extras/CUPTI/lib64
for d in "$site"/nvidia/*/lib; do libs=$libs:$d; done
cat > "$dir/run" <<END
#!/bin/sh
LD_LIBRARY_PATH="$libs" HF_HUB_OFFLINE=1 exec "$dir/bin/python" "\$@"
END
chmod +x "$dir/run"
LD_LIBRARY_PATH=$libs VLLM_TARGET_DEVICE=empty VLLM_VERSION_OVERRIDE=0.33.0 \
    $pip download -q --no-deps --no-binary vllm --no-build-isolation -d "$dir" vllm==0.33.0
tar -xzf "$dir/vllm-0.33.0.tar.gz" -C "$dir" --strip-components=4 vllm-0.33.0/examples/disaggregated/disaggregated_encoder/disagg_epd_proxy.py
rm "$dir/vllm-0.33.0.tar.gz"
