# SPDX-License-Identifier: Apache-2.0
"""RMM's buffers from Ductile, with RMM's own statistics on top. Needs a GPU.

cuDF, cuML and cuGraph allocate through RMM: after `enable` their memory comes from Ductile too.

    python rmm_buffers.py
"""

from __future__ import annotations

import sys

try:
    import rmm
except ImportError as error:
    sys.exit(f"this example needs RMM: {error}")

import ductile_gpu
import ductile_gpu.rmm


def main() -> int:
    try:
        resource = ductile_gpu.rmm.resource(0)
    except ductile_gpu.DeviceUnavailable as error:
        print(f"this example needs a GPU: {str(error).splitlines()[0]}", file=sys.stderr)
        return 1
    counted = rmm.mr.StatisticsResourceAdaptor(resource)
    rmm.mr.set_current_device_resource(counted)
    kept = [rmm.DeviceBuffer(size=size << 20) for size in (64, 256, 16)]
    del kept[1]
    kept.append(rmm.DeviceBuffer(size=200 << 20))
    print(f"RMM counts     {counted.allocation_counts.current_bytes >> 20} MiB in use")
    stats = ductile_gpu.shared(0).stats()
    print(
        f"Ductile counts {stats.allocated_bytes >> 20} MiB in use, "
        f"{stats.reserved_bytes >> 20} MiB held"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
