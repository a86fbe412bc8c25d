# SPDX-License-Identifier: Apache-2.0
"""usage: programs.py cupy|numba|both|nccl|nccl-calls

Programs without a word about their allocator, but for what is checked at the end. Each prints one
JSON object, and fails where a value is wrong.
"""

import collections
import ctypes
import json
import sys
import tempfile


def run_cupy():
    """Sums that CuPy and NumPy have to agree on."""
    import cupy
    import numpy

    for i in range(50):
        a = cupy.arange(1 << (10 + i % 12), dtype=cupy.float64)
        assert float((a * 2).sum()) == float((numpy.arange(len(a), dtype=float) * 2).sum())
    return {"version": cupy.__version__}


def run_numba():
    """A kernel of Numba."""
    import numba
    import numpy
    from numba import cuda

    @cuda.jit
    def double(out, values):
        at = cuda.grid(1)
        if at < values.size:
            out[at] = 2 * values[at]

    for i in range(20):
        values = numpy.arange(1 << (10 + i % 8), dtype=numpy.float32)
        there = cuda.to_device(values)
        out = cuda.device_array_like(there)
        double[(values.size + 255) // 256, 256](out, there)
        assert (out.copy_to_host() == 2 * values).all()
    return {"version": numba.__version__, "numpy": numpy.__version__}


def run_both():
    """PyTorch works on less and less while JAX keeps more and more: who had what, step by step."""
    import jax
    import jax.numpy as jnp
    import torch

    import ductile_gpu

    model = torch.nn.Sequential(
        torch.nn.Linear(2048, 4096), torch.nn.GELU(), torch.nn.Linear(4096, 1)
    )
    model.to("cuda")
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    step = jax.jit(jax.grad(lambda w, x: jnp.tanh(x @ w).sum()))
    weights = jax.random.normal(jax.random.PRNGKey(0), (2048, 2048))
    shared = ductile_gpu.shared(0)
    kept, moments = [], []
    for i in range(40):
        x = torch.randn(512 * (40 - i), 2048, device="cuda")
        loss = model(x).square().mean()
        weights = weights - 1e-4 * step(weights, jnp.ones((256, 2048)))
        kept.append(jnp.full((8 << 20,), i, dtype=jnp.float32).block_until_ready())
        stats = shared.stats()
        of_jax = sum(array.nbytes for array in jax.live_arrays())
        moments.append((stats.allocated_bytes - of_jax, of_jax, stats.reserved_bytes))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        del loss, x
    assert [int(array[0]) for array in kept] == list(range(40))
    torch.cuda.synchronize()
    shared.query(weights.unsafe_buffer_pointer())
    shared.query(next(model.parameters()).untyped_storage().data_ptr())
    shared.check()
    stats = shared.stats()
    return {
        "held": stats.reserved_peak_bytes,
        "live": stats.allocated_peak_bytes,
        "moments": moments,  # live bytes of PyTorch and of JAX, bytes held
    }


def calls_of_memory():
    """A count by name that follows the driver's calls about memory, as CUPTI tells them."""
    found = collections.Counter()
    kind = ctypes.CFUNCTYPE(
        None, ctypes.c_void_p, ctypes.c_int, ctypes.c_uint32, ctypes.POINTER(ctypes.c_void_p)
    )

    @kind
    def hear(_user, _domain, _call, about):
        name = ctypes.string_at(about[1]).decode()
        is_entered = about[0] is None or about[0] & 0xFFFFFFFF == 0
        if is_entered and name.startswith(("cuMem", "cuMulticast", "cuIpc")):
            found[name] += not name.startswith(("cuMemcpy", "cuMemset"))

    import torch

    cupti = ctypes.CDLL(f"libcupti.so.{torch.version.cuda.split('.')[0]}")
    subscriber = ctypes.c_void_p()
    driver_api = 1
    assert cupti.cuptiSubscribe(ctypes.byref(subscriber), hear, None) == 0
    assert cupti.cuptiEnableDomain(1, subscriber, driver_api) == 0
    found.keep = hear, subscriber
    return found


def run_nccl(counts_calls=False):
    """Collectives of a world of one, whose communicator has its buffers all the same."""
    import torch
    import torch.distributed as dist

    values = torch.arange(16 << 20, dtype=torch.float32, device="cuda")
    gathered, part = torch.empty_like(values), torch.empty_like(values)
    wanted = values * 2
    torch.cuda.synchronize()
    counts = calls_of_memory() if counts_calls else {}
    with tempfile.TemporaryDirectory() as folder:
        dist.init_process_group(
            "nccl", init_method=f"file://{folder}/store", rank=0, world_size=1,
            device_id=torch.device("cuda", 0),
        )  # fmt: skip
        for _ in range(20):
            summed = values.clone()
            dist.all_reduce(summed)
            dist.all_gather_into_tensor(gathered, summed)
            dist.reduce_scatter_tensor(part, gathered + summed)
        torch.cuda.synchronize()
        assert torch.equal(part, wanted)
        dist.destroy_process_group()
    version = ".".join(map(str, torch.cuda.nccl.version()))
    return {"version": version, "calls": {name: n for name, n in sorted(counts.items()) if n}}


PROGRAMS = {
    "cupy": run_cupy,
    "numba": run_numba,
    "both": run_both,
    "nccl": run_nccl,
    "nccl-calls": lambda: run_nccl(counts_calls=True),
}

if __name__ == "__main__":
    print(json.dumps(PROGRAMS[sys.argv[1]]()))
