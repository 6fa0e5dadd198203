"""vLLM's own KV offload on a CPU: its connector, tier manager, metrics and events as they are, its copies by memmove.

vLLM loads this by its own hook, kv_connector_extra_config {"spec_name": ..., "spec_module_path": "host_copy"}. Replaced is
only what needs a GPU: the check for one, streams and events, and the copy itself.

Every call of the tier manager is written to $KV_TRACE_FILE.pid*, with the slots it holds, those still being written, and
how many it has: what no metric says.
"""

import contextlib
import ctypes
import inspect
import json
import os
import time

import torch
from vllm.v1.kv_offload.cpu import gpu_worker, manager
from vllm.v1.kv_offload.cpu.spec import CPUOffloadingSpec
from vllm.v1.kv_offload.tiering.spec import TieringOffloadingSpec


class HostEvent:
    """A moment on the host's clock."""

    def __init__(self, *_, **__):
        self.at = None

    def record(self, stream=None):
        self.at = time.perf_counter()

    def query(self):
        return self.at is not None

    def synchronize(self):
        pass

    def elapsed_time(self, other):
        return (other.at - self.at) * 1e3


class HostStream:
    def wait_stream(self, stream):
        pass

    def wait_event(self, event):
        pass


class Platform:
    """The real platform, with streams of the host."""

    def __init__(self, real):
        self.real = real

    def __getattr__(self, name):
        return getattr(self.real, name)

    def Stream(self, *_, **__):
        return HostStream()

    def current_stream(self):
        return HostStream()

    def stream(self, stream):
        return contextlib.nullcontext()


class Torch:
    Event = HostEvent

    def __getattr__(self, name):
        return getattr(torch, name)


class Copies:
    def swap_blocks_batch(self, sources, targets, sizes, is_src_access_order_any=False):
        for source, target, size in zip(sources.tolist(), targets.tolist(), sizes.tolist()):
            ctypes.memmove(target, source, size)


def replace_what_needs_a_gpu():
    source = inspect.getsource(gpu_worker.SingleDirectionOffloadingHandler)
    check = "assert gpu_tensor.is_cuda or gpu_tensor.is_xpu"
    assert check in source, "this vLLM checks for a GPU in another way than 0.32 does"
    gpu_worker.current_platform = Platform(gpu_worker.current_platform)
    gpu_worker.torch = Torch()
    gpu_worker.ops = Copies()
    code = "from __future__ import annotations\n" + source.replace(check, "pass")
    exec(compile(code, gpu_worker.__file__, "exec"), gpu_worker.__dict__)


class OnHost:
    def get_worker(self, kv_caches):
        if not self._worker:
            self._worker = self.create_worker(kv_caches)
        return self._worker


class HostCopySpec(OnHost, CPUOffloadingSpec):
    pass


class HostShmSpec(HostCopySpec):
    """The tier in /dev/shm, as on CUDA."""

    def _uses_shared_region(self):
        return True


class HostShmTieringSpec(OnHost, TieringOffloadingSpec):
    def _uses_shared_region(self):
        return True


def trace_the_manager(path):
    trace = open(f"{path}.pid{os.getpid()}", "a", buffering=1)

    def traced(name):
        real = getattr(manager.CPUOffloadingManager, name)

        def call(self, *args, **kwargs):
            result = real(self, *args, **kwargs)
            held = self._num_allocated_chunks - len(self._free_list)
            state = {"t": time.time(), "op": name, "held": held, "pend": self._num_write_pending_chunks, "n": self._num_chunks}
            trace.write(json.dumps(state) + "\n")
            return result

        setattr(manager.CPUOffloadingManager, name, call)

    for name in ("prepare_load", "prepare_store", "complete_store", "reset_cache"):
        traced(name)


replace_what_needs_a_gpu()
if os.environ.get("KV_TRACE_FILE"):
    trace_the_manager(os.environ["KV_TRACE_FILE"])
