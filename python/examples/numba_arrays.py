# SPDX-License-Identifier: Apache-2.0
"""Numba kernels on three streams, their arrays from Ductile. Needs a GPU.

python numba_arrays.py
"""

from __future__ import annotations

import sys

try:
    import numpy as np
    from numba import cuda
except ImportError as error:
    sys.exit(f"this example needs Numba and NumPy: {error}")

import ductile_gpu
import ductile_gpu.numba


@cuda.jit
def scale(source, target, factor):
    i = cuda.grid(1)
    if i < source.size:
        target[i] = source[i] * factor


def main() -> int:
    ductile_gpu.numba.enable()  # before Numba uses the GPU
    if not cuda.is_available():
        print("this example needs a GPU that Numba can use", file=sys.stderr)
        return 1
    host = np.arange(1 << 20, dtype=np.float32)
    streams = [cuda.stream() for _ in range(3)]
    for turn in range(60):
        stream = streams[turn % len(streams)]
        source = cuda.to_device(host, stream=stream)
        target = cuda.device_array_like(source, stream=stream)
        scale[host.size // 256, 256, stream](source, target, np.float32(turn))
        result = target.copy_to_host(stream=stream)
        stream.synchronize()
        assert (result == host * turn).all()
        del source, target  # reused when the streams are done, without a wait on the host
    stats = ductile_gpu.shared(0).stats()
    print(f"{stats.allocs} arrays of 4 MiB; at the peak {stats.reserved_peak_bytes >> 20} MiB held")
    print(f"the host waited for a stream {stats.stream_syncs} times")
    return 0


if __name__ == "__main__":
    sys.exit(main())
