# SPDX-License-Identifier: Apache-2.0
"""What Ductile holds, for Prometheus: by HTTP, or as a file that node_exporter picks up.

python prometheus_metrics.py                           # what Prometheus would get
python prometheus_metrics.py --serve                   # http://localhost:9710/metrics
python prometheus_metrics.py /var/lib/node_exporter/ductile.prom
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterable
from typing import Any

try:
    import prometheus_client
    from prometheus_client.openmetrics.parser import text_string_to_metric_families
except ImportError as error:
    sys.exit(f"this example needs prometheus_client: {error}")

import ductile_gpu


class Ductile:
    """A collector: asked at every scrape, it reads the statistics of the moment."""

    def collect(self) -> Iterable[Any]:
        return text_string_to_metric_families(ductile_gpu.metrics())


def write_for_node_exporter(path: str) -> None:
    """The file is replaced as a whole, since node_exporter may read at any time."""
    new = f"{path}.{os.getpid()}"
    with open(new, "w", encoding="utf-8") as file:
        file.write(ductile_gpu.metrics())
    os.replace(new, path)


def main() -> int:
    """Prints, writes once, or serves; a real program does either beside its work."""
    prometheus_client.REGISTRY.register(Ductile())
    if sys.argv[1:] == ["--serve"]:
        prometheus_client.start_http_server(9710, addr="localhost")
        while True:
            time.sleep(60)
    elif len(sys.argv) > 1:
        write_for_node_exporter(sys.argv[1])
    else:
        print(prometheus_client.generate_latest().decode(), end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
