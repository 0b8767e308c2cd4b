"""Make the environment that holds SGLang for CPU; ``make test-sglang`` runs it.

SGLang's wheel wants CUDA packages, so it is installed without its dependencies, beside
those that a CPU needs. Two things are put right afterwards, in this environment only:
torchvision registers kernels that a CPU build of torch does not have, and SGLang's
kernels (``sgl_kernel``) are on no index for CPUs; SGLang falls back to torch for the
ones that are missing, so an empty stand-in serves.

It is kept in ``$WARMROUTE_CACHE/sglang-0.5.23-py3.11`` as that of vLLM is.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[3] / "examples" / "01_two_vllm"))

from two_vllm.cache import ensure_made, python_folder
from two_vllm.command import run_logged

from warmroute.proxy.demo.progress import Step

SGLANG_VERSION = "0.5.23"
_TORCH = "torch==2.13.0+cpu"
_TORCHVISION = "torchvision==0.28.0"
_PACKAGES = (
    *("aiohttp", "anthropic", "apache-tvm-ffi", "blobfile", "cloudpickle"),
    *("compressed-tensors", "dill", "distro", "easydict", "einops", "fastapi", "gguf"),
    *("httpx", "huggingface_hub", "interegular", "IPython", "llguidance"),
    *("mistral_common", "msgspec", "ninja", "numba", "numpy", "nvidia-ml-py"),
    *("openai", "openai-harmony==0.0.4", "orjson", "packaging", "partial_json_parser"),
    *("pillow", "prometheus-client", "psutil", "py-spy", "pybase64", "pydantic"),
    *("python-dateutil", "python-multipart", "pyzmq", "regex", "requests"),
    *("safetensors", "scipy", "sentencepiece", "setproctitle", "soundfile", "tiktoken"),
    *("tqdm",),
    *("transformers==5.19.0", "triton", "uvicorn>=0.51", "uvloop", "watchfiles"),
    *("xgrammar", "xxhash", "zstandard"),
)
_CUDA_ONLY = ("_meta_registrations,", "_autograd_registrations,")
_KERNELS = '''\
"""Stands in for SGLang's kernels, none of which exists on a CPU."""

import sys
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec


class _Missing:
    def __init__(self, name):
        self._name = name

    def __call__(self, *arguments, **options):
        raise NotImplementedError(f"no kernel {self._name} on a CPU")

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return _Missing(f"{self._name}.{name}")


def _kernel_of(name):
    if name.startswith("__"):
        raise AttributeError(name)
    return _Missing(name)


class _Empty(MetaPathFinder, Loader):
    def find_spec(self, name, path, target=None):
        if name.startswith("sgl_kernel."):
            return ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec):
        return None

    def exec_module(self, module):
        module.__getattr__ = _kernel_of


__version__ = "0.4.10"
__getattr__ = _kernel_of
sys.meta_path.append(_Empty())
'''
_CHECK = (
    "import os; os.environ['SGLANG_USE_CPU_ENGINE'] = '1'; "
    "import sgl_kernel, torchvision, sglang.srt.entrypoints.http_server"
)


def ensure_environment() -> Path:
    """Return the folder of a working environment, made when missing.

    Takes a few minutes and about 2 GB the first time.

    Raises:
        DemoError: it could not be made; names the log.
    """
    return ensure_made(python_folder(f"sglang-{SGLANG_VERSION}"), _build)


def _build(folder: Path, log: Path) -> None:
    python = folder / "bin" / "python"
    pip = [python, "-m", "pip", "--no-input", "--disable-pip-version-check", "install"]
    print(f"making {folder} (once, about 2 GB, log: {log})", file=sys.stderr)
    with Step("  1/4 virtual environment") as step:
        run_logged([sys.executable, "-m", "venv", folder], log, step)
    with Step(f"  2/4 {_TORCH} and what SGLang imports") as step:
        run_logged([*pip, _TORCH, *_PACKAGES], log, step)
    with Step(f"  3/4 SGLang {SGLANG_VERSION} itself") as step:
        itself = f"sglang=={SGLANG_VERSION}"
        run_logged([*pip, "--no-deps", _TORCHVISION, itself], log, step)
    with Step("  4/4 what a CPU needs put right, and a check") as step:
        _put_right(next((folder / "lib").glob("python*/site-packages")))
        run_logged([python, "-c", _CHECK], log, step)


def _put_right(packages: Path) -> None:
    torchvision = packages / "torchvision" / "__init__.py"
    lines = torchvision.read_text().splitlines(keepends=True)
    kept = [line for line in lines if line.strip() not in _CUDA_ONLY]
    torchvision.write_text("".join(kept))
    kernels = packages / "sgl_kernel"
    kernels.mkdir(exist_ok=True)
    (kernels / "__init__.py").write_text(_KERNELS)


if __name__ == "__main__":
    print(ensure_environment())
