# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: E501
"""What the driver and PyTorch's libraries do with host memory behind a device's address range.

    python host_tier.py OUT.jsonl

A range whose first half is device memory and whose second half is host memory: one row for each
thing that is asked, whatever the others answer. Needs a Hopper GPU, CuPy and Triton.
"""

import contextlib
import ctypes
import json
import os
import subprocess
import sys
import time
import traceback
from pathlib import Path

import torch
import triton
import triton.language as tl

MIB = 1 << 20
HALF = 256 * MIB
LOCATIONS = {"host_numa": 3, "host": 2}
out = Path(sys.argv[1]).open("w") if len(sys.argv) > 1 else sys.stdout  # noqa: SIM115


def say(row, **values):
    print(json.dumps({"row": row, **values}), file=out, flush=True)


@triton.jit
def add(a, b, o, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(o + at, tl.load(a + at, at < n) + tl.load(b + at, at < n), at < n)


class Location(ctypes.Structure):
    _fields_ = [("type", ctypes.c_int), ("id", ctypes.c_int)]


class Props(ctypes.Structure):
    _fields_ = [
        ("type", ctypes.c_int),
        ("handle_types", ctypes.c_int),
        ("location", Location),
        ("win32", ctypes.c_void_p),
        ("flags", ctypes.c_ubyte * 8),
    ]


class Access(ctypes.Structure):
    _fields_ = [("location", Location), ("flags", ctypes.c_int)]


cuda = ctypes.CDLL("libcuda.so.1")
U64 = ctypes.c_ulonglong


def call(name, *args):
    code = getattr(cuda, name)(*args)
    if code != 0:
        raise RuntimeError(f"{name}: {code}")


def attribute(which):
    value = ctypes.c_int(-1)
    code = cuda.cuDeviceGetAttribute(ctypes.byref(value), which, 0)
    return value.value if code == 0 else f"refused {code}"


def props(kind, number=0):
    return Props(1, 0, Location(kind, number))


def create(kind, size, number=0):
    handle = U64()
    asked = props(kind, number)
    start = time.perf_counter()
    code = cuda.cuMemCreate(
        ctypes.byref(handle), ctypes.c_size_t(size), ctypes.byref(asked), U64(0)
    )
    return handle, code, time.perf_counter() - start


def grant(addr, size, kind, number=0):
    asked = Access(Location(kind, number), 3)
    return cuda.cuMemSetAccess(
        U64(addr), ctypes.c_size_t(size), ctypes.byref(asked), ctypes.c_size_t(1)
    )


def pointer(addr, which, kind=ctypes.c_ulonglong):
    value = kind(0)
    code = cuda.cuPointerGetAttribute(ctypes.byref(value), which, U64(addr))
    return value.value if code == 0 else f"refused {code}"


POINTER = {
    "context": 1,
    "memory_type": 2,
    "device_pointer": 3,
    "host_pointer": 4,
    "is_managed": 8,
    "device_ordinal": 9,
    "mapped": 13,
    "access_flags": 16,
    "mempool": 17,
}


def attributes_of(addr):
    return {
        name: pointer(addr, which, ctypes.c_uint if which in (2, 8, 9, 13, 16) else U64)
        for name, which in POINTER.items()
    }


def memory_now():
    """Of the machine and of the process's control group, in MiB."""
    info = {
        line.split(":")[0]: int(line.split()[1]) >> 10
        for line in Path("/proc/meminfo").read_text().splitlines()
    }
    found = {"available": info["MemAvailable"], "total": info["MemTotal"]}
    for group in ("/sys/fs/cgroup", "/sys/fs/cgroup/memory"):
        for name in ("memory.current", "memory.usage_in_bytes"):
            path = Path(group, name)
            if path.exists():
                found[str(path)] = int(path.read_text()) >> 20
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(("VmRSS", "VmLck", "VmPin")):
            found[line.split(":")[0]] = int(line.split()[1]) >> 10
    return found


class Range:
    """Device memory, then host memory, one behind the other."""

    def __init__(self, kind):
        self.base = U64()
        call(
            "cuMemAddressReserve",
            ctypes.byref(self.base),
            ctypes.c_size_t(2 * HALF),
            ctypes.c_size_t(0),
            U64(0),
            U64(0),
        )
        self.addr = self.base.value
        self.handles = [create(1, HALF)[0], create(kind, HALF)[0]]
        for i, handle in enumerate(self.handles):
            call(
                "cuMemMap",
                U64(self.addr + i * HALF),
                ctypes.c_size_t(HALF),
                ctypes.c_size_t(0),
                handle,
                U64(0),
            )
        assert grant(self.addr, 2 * HALF, 1) == 0

    def tensor(self, offset, shape, dtype=torch.float32):
        size = torch.Size(shape).numel() * dtype.itemsize
        storage = torch._C._construct_storage_from_data_pointer(
            self.addr + offset, torch.device("cuda", 0), size
        )
        return torch.empty(0, dtype=dtype, device="cuda").set_(storage, 0, shape)

    def drop(self):
        torch.cuda.synchronize()
        for i, handle in enumerate(self.handles):
            call("cuMemUnmap", U64(self.addr + i * HALF), ctypes.c_size_t(HALF))
            call("cuMemRelease", handle)
        call("cuMemAddressFree", self.base, ctypes.c_size_t(2 * HALF))


KERNELS = r"""
#include <cuda_bf16.h>
#include <cuda_fp16.h>
extern "C" __global__ void add_u32(unsigned *p) { atomicAdd(p + threadIdx.x % 7, 1u); }
extern "C" __global__ void add_u64(unsigned long long *p) { atomicAdd(p + threadIdx.x % 7, 1ull); }
extern "C" __global__ void add_f32(float *p) { atomicAdd(p + threadIdx.x % 7, 1.f); }
extern "C" __global__ void add_f64(double *p) { atomicAdd(p + threadIdx.x % 7, 1.); }
extern "C" __global__ void add_f16(__half *p) { atomicAdd(p + threadIdx.x % 7, __float2half(1.f)); }
extern "C" __global__ void add_f16x2(__half2 *p) { atomicAdd(p + threadIdx.x % 7, __floats2half2_rn(1.f, 1.f)); }
extern "C" __global__ void add_bf16x2(__nv_bfloat162 *p) {
    atomicAdd(p + threadIdx.x % 7, __floats2bfloat162_rn(1.f, 1.f)); }
extern "C" __global__ void cas_u16(unsigned short *p) {
    unsigned short old = *p, was; do { was = old; old = atomicCAS(p, was, (unsigned short)(was + 1)); } while (old != was); }
extern "C" __global__ void cas_u32(unsigned *p) {
    unsigned old = *p, was; do { was = old; old = atomicCAS(p, was, was + 1); } while (old != was); }
extern "C" __global__ void cas_u64(unsigned long long *p) {
    unsigned long long old = *p, was; do { was = old; old = atomicCAS(p, was, was + 1); } while (old != was); }
extern "C" __global__ void sys_u32(unsigned *p) { atomicAdd_system(p + threadIdx.x % 7, 1u); }
extern "C" __global__ void sys_u64(unsigned long long *p) { atomicAdd_system(p + threadIdx.x % 7, 1ull); }
extern "C" __global__ void max_i32(int *p) { atomicMax(p, (int)(blockIdx.x * blockDim.x + threadIdx.x)); }
extern "C" __global__ void scattered(const float4 *p, unsigned n, unsigned each, float *o) {
    unsigned at = (blockIdx.x * blockDim.x + threadIdx.x) * 2654435761u; float sum = 0;
    for (unsigned i = 0; i < each; i++) { at = at * 1664525u + 1013904223u; unsigned k = (at >> 4) % n;
        float4 a = p[2 * k], b = p[2 * k + 1]; sum += a.x + b.w; }
    if (sum == 12345.f) *o = sum; }
"""
WIDE = r"""
extern "C" __global__ void add_f32x4(float4 *p) { atomicAdd(p + threadIdx.x % 7, make_float4(1, 1, 1, 1)); }
extern "C" __global__ void cas_u128(ulonglong2 *p) {
    struct __align__(16) wide { unsigned long long a, b; };
    wide *q = (wide *)p; wide old = *q, was; do { was = old; wide now = {was.a + 1, was.b}; old = atomicCAS(q, was, now); }
    while (old.a != was.a || old.b != was.b); }
"""
BULK = r"""
extern "C" __global__ void bulk(const char *from, char *to, int size) {
    extern __shared__ __align__(128) char tile[];
    __shared__ __align__(8) unsigned long long bar;
    unsigned s = (unsigned)__cvta_generic_to_shared(tile), m = (unsigned)__cvta_generic_to_shared(&bar);
    from += (size_t)blockIdx.x * size; to += (size_t)blockIdx.x * size;
    if (threadIdx.x == 0) {
        asm volatile("mbarrier.init.shared.b64 [%0], 1;" :: "r"(m));
        asm volatile("fence.proxy.async.shared::cta;");
        asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" :: "r"(m), "r"(size));
        asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
                     :: "r"(s), "l"(from), "r"(size), "r"(m) : "memory");
        unsigned done = 0;
        while (!done) asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared.b64 p, [%1], 0; selp.u32 %0, 1, 0, p; }"
                                   : "=r"(done) : "r"(m) : "memory");
        asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" :: "l"(to), "r"(s), "r"(size) : "memory");
        asm volatile("cp.async.bulk.commit_group;"); asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
    } }
"""
ATOMICS = {
    "add_u32": torch.int32,
    "add_u64": torch.int64,
    "add_f32": torch.float32,
    "add_f64": torch.float64,
    "add_f16": torch.float16,
    "add_f16x2": torch.float16,
    "add_bf16x2": torch.bfloat16,
    "add_f32x4": torch.float32,
    "cas_u16": torch.int16,
    "cas_u32": torch.int32,
    "cas_u64": torch.int64,
    "cas_u128": torch.int64,
    "sys_u32": torch.int32,
    "sys_u64": torch.int64,
    "max_i32": torch.int32,
}
WIDEST = ("add_f32x4", "cas_u128")


def module(code):
    import cupy

    include = [
        "-I" + str(path)
        for path in Path(sys.prefix).glob("lib/python3*/site-packages/nvidia/*/include")
    ]
    include += ["-I/usr/local/cuda/include"]
    return cupy.RawModule(
        code=code, backend="nvrtc", options=("-std=c++17", "-arch=sm_90", *include)
    )


def seconds(work, n=3):
    """The least of n."""
    found = []
    for _ in range(n):
        torch.cuda.synchronize()
        start = time.perf_counter()
        work()
        torch.cuda.synchronize()
        found.append(time.perf_counter() - start)
    return min(found)


def try_row(row, work):
    try:
        values = work()
        torch.cuda.synchronize()
        say(row, **(values or {"ok": True}))
    except Exception as error:  # each row stands alone
        say(row, failed=str(error)[:300], where=traceback.format_exc()[-200:])


def atomics(r, kernels, names):
    for name in names:
        dtype = ATOMICS[name]

        def run(name=name, dtype=dtype):
            import cupy

            results = []
            for offset in (0, HALF):
                t = r.tensor(offset, (64,), dtype)
                t.zero_()
                torch.cuda.synchronize()
                kernels.get_function(name)((16,), (32,), (cupy.uint64(t.data_ptr()),))
                cupy.cuda.Device().synchronize()
                results.append(t.tolist())
            return {"same_as_device": results[0] == results[1], "sum": float(sum(results[1]))}

        try_row("atomic " + name, run)


def kernel_rows(r):
    import cupy

    kernels = module(KERNELS)
    atomics(r, kernels, [name for name in ATOMICS if name not in WIDEST])
    o = torch.zeros(1, device="cuda")

    def scattered(offset):
        f = kernels.get_function("scattered")
        args = (
            cupy.uint64(r.addr + offset),
            cupy.uint32(HALF // 32),
            cupy.uint32(64),
            cupy.uint64(o.data_ptr()),
        )

        def go():
            f((528,), (256,), args)
            cupy.cuda.Device().synchronize()

        return 528 * 256 * 64 * 32 / seconds(go) / 1e9

    try_row(
        "scattered 32-byte reads, GB/s", lambda: {"device": scattered(0), "host": scattered(HALF)}
    )


def wide_rows(r):
    atomics(r, module(WIDE), WIDEST)


def bulk_rows(r):
    import cupy

    def bulk():
        f = module(BULK).get_function("bulk")
        size, n = 16384, 4096
        src = r.tensor(HALF, (n * size // 4,), torch.int32)
        src.copy_(torch.arange(n * size // 4, dtype=torch.int32, device="cuda"))
        results = {}
        for name, a, b in (("host to device", HALF, 0), ("device to host", 0, HALF + 128 * MIB)):

            def go(a=a, b=b):
                f(
                    (n,),
                    (32,),
                    (cupy.uint64(r.addr + a), cupy.uint64(r.addr + b), cupy.int32(size)),
                    shared_mem=size,
                )
                cupy.cuda.Device().synchronize()

            torch.cuda.synchronize()
            results[name + ", GB/s"] = n * size / seconds(go) / 1e9
        same = torch.equal(r.tensor(HALF + 128 * MIB, (n * size // 4,), torch.int32), src)
        return {"same": same, **results}

    try_row("bulk copies of the tensor memory accelerator", bulk)


def copies(r):
    n = 32 * MIB
    device, host = r.tensor(0, (n,), torch.uint8), r.tensor(HALF, (n,), torch.uint8)
    across = r.tensor(HALF - n // 2, (n,), torch.uint8)
    pattern = torch.randint(0, 255, (n,), dtype=torch.uint8)
    pinned = pattern.pin_memory()
    for name, t in (("device", device), ("host", host), ("across both", across)):

        def up_and_down(t=t):
            t.copy_(pattern)
            a = torch.equal(t.cpu(), pattern)
            t.copy_(pinned, non_blocking=True)
            back = torch.empty_like(pinned).pin_memory()
            back.copy_(t, non_blocking=True)
            torch.cuda.synchronize()
            return {
                "pageable": a,
                "pinned": torch.equal(back, pattern),
                "up_GBs": n / seconds(lambda: t.copy_(pinned, non_blocking=True)) / 1e9,
                "down_GBs": n / seconds(lambda: back.copy_(t, non_blocking=True)) / 1e9,
            }

        try_row("copies, " + name, up_and_down)

        def fills(t=t):
            results = {}
            for call_name, unit, kind in (
                ("cuMemsetD8_v2", 1, ctypes.c_ubyte),
                ("cuMemsetD16_v2", 2, ctypes.c_ushort),
                ("cuMemsetD32_v2", 4, ctypes.c_uint),
            ):
                call(call_name, U64(t.data_ptr()), kind(7), ctypes.c_size_t(n // unit))
                torch.cuda.synchronize()
                results[call_name] = t.cpu().sum().item() == 7 * (n // unit)
            call(
                "cuMemsetD2D8_v2",
                U64(t.data_ptr()),
                ctypes.c_size_t(4096),
                ctypes.c_ubyte(1),
                ctypes.c_size_t(1000),
                ctypes.c_size_t(1000),
            )
            results["2D"] = t[:1000].sum().item() == 1000
            return results

        try_row("memset, " + name, fills)
    big = [r.tensor(i * HALF, (HALF // 2,), torch.uint8) for i in (0, 1)]
    try_row(
        "copies on the GPU, GB/s",
        lambda: {
            "device to host": HALF / 2 / seconds(lambda: big[1].copy_(big[0])) / 1e9,
            "host to device": HALF / 2 / seconds(lambda: big[0].copy_(big[1])) / 1e9,
            "host to host": HALF
            / 4
            / seconds(lambda: big[1][: HALF // 4].copy_(big[1][HALF // 4 : HALF // 2]))
            / 1e9,
        },
    )

    def strided():
        a, b = device.view(4096, -1), host.view(4096, -1)
        b[:, ::2].copy_(a[:, ::2])
        return {"same": torch.equal(a[:, ::2], b[:, ::2])}

    try_row("strided copy", strided)


def graphs(r):
    a, b = r.tensor(0, (MIB,)), r.tensor(HALF, (MIB,))
    c = r.tensor(HALF + 64 * MIB, (MIB,))
    g = torch.cuda.CUDAGraph()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        b.copy_(a)
        torch.cuda.synchronize()
        with torch.cuda.graph(g, stream=stream):
            b.copy_(a)
            c.zero_()
            c.add_(b)
            a.copy_(c)
    a.copy_(torch.arange(MIB, device="cuda"))
    want = a.clone()
    g.replay()
    torch.cuda.synchronize()
    return {"same": torch.equal(a, want) and torch.equal(c, want)}


def libraries(r):
    torch.manual_seed(1)
    for dtype in (torch.float32, torch.bfloat16):
        x, w = (
            torch.randn(2048, 2048, device="cuda", dtype=dtype),
            torch.randn(2048, 2048, device="cuda", dtype=dtype),
        )

        def matmul(x=x, w=w, dtype=dtype):
            a, b, c = (r.tensor(HALF + i * 32 * MIB, (2048, 2048), dtype) for i in range(3))
            a.copy_(x)
            b.copy_(w)
            torch.matmul(a, b, out=c)
            return {
                "same_bits": torch.equal(c, x @ w),
                "ms": seconds(lambda: torch.matmul(a, b, out=c)) * 1e3,
                "device_ms": seconds(lambda: x @ w) * 1e3,
            }

        try_row(f"cuBLAS {dtype}", matmul)

    def conv():
        x = torch.randn(16, 64, 56, 56, device="cuda", dtype=torch.bfloat16)
        w = torch.randn(64, 64, 3, 3, device="cuda", dtype=torch.bfloat16)
        hx, hw = r.tensor(HALF, x.shape, x.dtype), r.tensor(HALF + 32 * MIB, w.shape, w.dtype)
        hx.copy_(x)
        hw.copy_(w)
        a, b = (
            torch.nn.functional.conv2d(hx, hw, padding=1),
            torch.nn.functional.conv2d(x, w, padding=1),
        )
        return {"same_bits": torch.equal(a, b)}

    try_row("cuDNN convolution", conv)

    def attention():
        q = torch.randn(2, 16, 1024, 64, device="cuda", dtype=torch.bfloat16)
        h = r.tensor(HALF, q.shape, q.dtype)
        h.copy_(q)
        f = torch.nn.functional.scaled_dot_product_attention
        return {"same_bits": torch.equal(f(h, h, h), f(q, q, q))}

    try_row("attention", attention)

    def index():
        e = torch.randn(4096, 256, device="cuda")
        i = torch.randint(0, 4096, (8192,), device="cuda")
        h = r.tensor(HALF, e.shape)
        h.copy_(e)
        g = r.tensor(HALF + 32 * MIB, e.shape)
        g.zero_()
        g.index_add_(0, i, torch.ones(8192, 256, device="cuda"))
        return {
            "same_bits": torch.equal(h[i], e[i]),
            "counts": g.sum().item() == 8192 * 256,
            "sort": torch.equal(h.flatten().sort()[0], e.flatten().sort()[0]),
        }

    try_row("embedding, index_add, sort", index)

    def fused():
        p = [torch.randn(MIB, device="cuda") for _ in range(2)]
        h = [r.tensor(HALF + i * 8 * MIB, (MIB,)) for i in range(2)]
        for a, b in zip(p, h):
            b.copy_(a)
        for params in (p, h):
            for t in params:
                t.requires_grad_()
                t.grad = torch.ones_like(t)
            torch.optim.AdamW(params, lr=1e-3, fused=True).step()
        return {"same_bits": all(torch.equal(a, b) for a, b in zip(p, h))}

    try_row("fused AdamW", fused)

    def triton_row():
        h = r.tensor(HALF, (MIB,))
        h.fill_(2)
        o = r.tensor(HALF + 32 * MIB, (MIB,))
        add[(MIB // 1024,)](h, h, o, MIB, BLOCK=1024)
        return {"same": o.sum().item() == 4 * MIB, "version": triton.__version__}

    try_row("Triton", triton_row)

    def nccl():
        import torch.distributed as d

        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29511")
        d.init_process_group("nccl", rank=0, world_size=1)
        t = r.tensor(HALF, (MIB,))
        t.fill_(3)
        d.all_reduce(t)
        d.broadcast(t, 0)
        torch.cuda.synchronize()
        d.destroy_process_group()
        return {"same": t.sum().item() == 3 * MIB}

    try_row("NCCL of one rank", nccl)


def disturbance(r):
    """Does reading the host's half slow copies in the device's own memory down?"""
    a = torch.empty(2 << 30, dtype=torch.uint8, device="cuda")
    b = torch.empty_like(a)
    h = r.tensor(HALF, (HALF // 4,))
    side = torch.cuda.Stream()

    def plain():
        for _ in range(20):
            b.copy_(a)

    alone = seconds(plain)

    def both():
        with torch.cuda.stream(side):
            for _ in range(4):
                h.sum()
        plain()

    return {
        "alone_GBs": 2 * 20 * a.numel() / alone / 1e9,
        "beside_GBs": 2 * 20 * a.numel() / seconds(both) / 1e9,
    }


def interfaces(r):
    """Who decides by the pointer alone."""

    class Array:
        __cuda_array_interface__ = {  # noqa: RUF012
            "shape": (1024,),
            "typestr": "<f4",
            "data": (r.addr + HALF, False),
            "version": 3,
        }

    def torch_says():
        return {"device": str(torch.as_tensor(Array()).device)}

    def cupy_says():
        import cupy

        return {
            "device": int(cupy.asarray(Array()).data.device.id),
            "pointer": str(cupy.cuda.runtime.pointerGetAttributes(r.addr + HALF).type),
        }

    def is_pinned():
        return {
            "is_pinned": torch.empty(0).is_pinned(),
            "ipc": ipc(r.addr + HALF),
            "ipc_of_device": ipc(r.addr),
        }

    try_row("__cuda_array_interface__, torch", torch_says)
    try_row("__cuda_array_interface__, CuPy", cupy_says)
    try_row("IPC", is_pinned)


def ipc(addr):
    return cuda.cuIpcGetMemHandle(ctypes.create_string_buffer(64), U64(addr))


def costs():
    for name, kind in LOCATIONS.items():
        for size in (2, 32, 128):
            made = [create(kind, size * MIB) for _ in range(max(1, 128 // size))]
            start = time.perf_counter()
            for handle, code, _ in made:
                if code == 0:
                    call("cuMemRelease", handle)
            spent = time.perf_counter() - start
            say(
                f"create and release, {name}, {size} MiB",
                codes=sorted({m[1] for m in made}),
                create_ms=1e3 * sum(m[2] for m in made) / len(made),
                release_ms=1e3 * spent / len(made),
            )
        before = memory_now()
        handle, code, spent = create(kind, 1 << 30)
        again, _, second = create(kind, 1 << 30)
        during = memory_now()
        for h in (handle, again):
            call("cuMemRelease", h)
        say(
            f"2 GiB, {name}",
            code=code,
            ms=[1e3 * spent, 1e3 * second],
            before=before,
            during=during,
            after=memory_now(),
        )


def in_group():
    """A child in a control group of 1 GiB asks for 2 GiB of host memory, 64 MiB at a time."""
    group = Path("/sys/fs/cgroup/ductile_probe")
    try:
        group.mkdir(exist_ok=True)
        limit = group / "memory.max"
        limit.write_text(str(1 << 30))
        code = (
            "import sys, os; sys.argv = ['x', '/dev/null']\n"
            "import host_tier as p\n"
            f"open('{group}/cgroup.procs', 'w').write(str(os.getpid()))\n"
            "import torch; torch.zeros(1, device='cuda')\n"
            "codes = [p.create(2, 64 << 20)[1] for _ in range(32)]\nprint(codes)\n"
        )
        done = subprocess.run(
            [sys.executable, "-c", code],
            capture_output=True,
            text=True,
            timeout=40,
            cwd=Path(__file__).parent,
        )
        return {
            "rc": done.returncode,
            "out": done.stdout[-300:],
            "err": done.stderr[-200:],
            "events": (group / "memory.events").read_text(),
        }
    finally:
        with contextlib.suppress(OSError):
            group.rmdir()


def of_ranges():
    say(
        "machine",
        name=torch.cuda.get_device_name(),
        cuda=torch.version.cuda,
        torch=torch.__version__,
        attributes={str(which): attribute(which) for which in (99, 100, 134, 141, 142, 143)},
        memory=memory_now(),
    )
    costs()
    for name, kind in LOCATIONS.items():
        r = Range(kind)
        say("pointer attributes, device", of=attributes_of(r.addr))
        say(f"pointer attributes, {name}", of=attributes_of(r.addr + HALF))
        codes = {other: grant(r.addr + HALF, HALF, k) for other, k in LOCATIONS.items()}
        say(
            f"pointer attributes, {name}, host granted",
            codes=codes,
            of=attributes_of(r.addr + HALF),
            on_device_half=grant(r.addr, HALF, 2),
        )
        try_row(f"host reads and writes, {name}", lambda r=r: {"value": host_writes(r)})
        try_row(f"dropped, {name}", r.drop)


def host_writes(r):
    at = ctypes.c_float.from_address(r.addr + HALF)
    at.value = 3.5
    return r.tensor(HALF, (1,)).item()


def of_copies(r):
    copies(r)
    try_row("a graph", lambda: graphs(r))
    try_row("beside it", lambda: disturbance(r))


SECTIONS = {
    "kernels": kernel_rows,
    "wide": wide_rows,
    "bulk": bulk_rows,
    "copies": of_copies,
    "libraries": libraries,
    "interfaces": interfaces,
}


def section(name):
    torch.zeros(1, device="cuda")
    if name == "ranges":
        of_ranges()
    elif name == "group":
        try_row("a control group of 1 GiB", in_group)
    else:
        r = Range(LOCATIONS[sys.argv[3]] if len(sys.argv) > 3 else 2)
        try_row(name, lambda: SECTIONS[name](r))


def main():
    for name in ("ranges", *SECTIONS, "group"):
        try:
            done = subprocess.run(
                [sys.executable, __file__, "/dev/stdout", name],
                capture_output=True,
                text=True,
                timeout=60,
            )
            print(done.stdout, end="", file=out, flush=True)
            if done.returncode:
                say(name, rc=done.returncode, err=done.stderr[-400:])
        except subprocess.TimeoutExpired:
            say(name, failed="did not end")


if __name__ == "__main__":
    section(sys.argv[2]) if len(sys.argv) > 2 else main()
