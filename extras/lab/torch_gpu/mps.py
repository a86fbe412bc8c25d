# SPDX-License-Identifier: Apache-2.0
"""Programs on Ductile as clients of NVIDIA's Multi-Process Service (MPS).

    python mps.py [--seconds 100]

Starts nvidia-cuda-mps-control with a folder of its own, and ends it. Then, each in processes of
their own:

  together   two clients write and check blocks at the same time
  limited    CUDA_MPS_PINNED_DEVICE_MEM_LIMIT: what the client sees as free, how much Ductile gets
             until it is refused, and that it goes on afterwards
  set        the same by the service's set_default_device_pinned_mem_limit
  native     limited, on PyTorch's own allocator: what the limit means without Ductile
  killed     of two clients one is killed at work: what becomes of the other, and of the memory

Prints a line for each, and JSON of what the clients saw. Ends with 1 when a client had other
trouble than being refused memory, or wrong contents; with 77 where the service cannot be started.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import child

MIB = 1 << 20
LIMIT_MIB = 6144
BLOCK_MIB = 256
SKIPPED = 77
MPS_ENABLED = 133  # CU_DEVICE_ATTRIBUTE_MPS_ENABLED

# ---- A client ----------------------------------------------------------------------------------


def is_client() -> bool:
    value = ctypes.c_int(0)
    ctypes.CDLL("libcuda.so.1").cuDeviceGetAttribute(ctypes.byref(value), MPS_ENABLED, 0)
    return value.value == 1


def fill(torch: Any) -> dict[str, Any]:
    """Takes memory until there is none, gives all back, and takes half of that again."""
    free, total = torch.cuda.mem_get_info()
    blocks: list[Any] = []
    said = ""
    while not said:
        try:
            blocks.append(torch.full((BLOCK_MIB * MIB,), 7, dtype=torch.uint8, device="cuda"))
        except torch.OutOfMemoryError as error:
            said = str(error).splitlines()[0]
    got = len(blocks) * BLOCK_MIB
    blocks.clear()
    again = [torch.zeros(BLOCK_MIB * MIB, dtype=torch.uint8, device="cuda")
             for _ in range(got // BLOCK_MIB // 2)]  # fmt: skip
    torch.cuda.synchronize()
    return {"free_mib": free // MIB, "total_mib": total // MIB, "got_mib": got,
            "again_mib": len(again) * BLOCK_MIB, "said": said}  # fmt: skip


def work(torch: Any, seconds: float) -> dict[str, Any]:
    """Blocks of changing sizes on two streams; each is checked before it goes."""
    end, rounds, wrong = time.monotonic() + seconds, 0, 0
    streams = [torch.cuda.Stream() for _ in range(2)]
    live: list[tuple[Any, int]] = []
    while time.monotonic() < end:
        rounds += 1
        with torch.cuda.stream(streams[rounds % 2]):
            size = (rounds * 7919 % 61 + 1) * MIB
            live.append(
                (torch.full((size,), rounds % 251, dtype=torch.uint8, device="cuda"), rounds)
            )
        torch.cuda.synchronize()
        if len(live) > 20:
            block, n = live.pop(rounds * 31 % 20)
            wrong += int((block != n % 251).any())
    return {"rounds": rounds, "wrong": wrong, "free_mib": torch.cuda.mem_get_info()[0] // MIB}


def be_client(given: argparse.Namespace) -> int:
    channel = child.open_channel()
    if given.allocator == "ductile":
        import ductile_gpu.torch

        ductile_gpu.torch.enable("full")
    import torch

    torch.zeros(1, device="cuda")
    print(json.dumps({"ready": os.getpid()}), file=channel, flush=True)
    found = fill(torch) if given.client == "fill" else work(torch, given.for_seconds)
    found |= {"mps": is_client(), "backend": torch.cuda.get_allocator_backend()}
    print(json.dumps(found), file=channel, flush=True)
    return 0


# ---- The service -------------------------------------------------------------------------------


def renumbered(given: str | None) -> dict[str, str]:
    """What clients say of the devices that the service was given: it numbers them by itself."""
    if not given:
        return {}
    return {"CUDA_VISIBLE_DEVICES": ",".join(str(n) for n in range(len(given.split(","))))}


class Service:
    """nvidia-cuda-mps-control, in a folder of its own."""

    def __init__(self, folder: str) -> None:
        self.where = {**os.environ, "CUDA_MPS_PIPE_DIRECTORY": f"{folder}/pipe",
                      "CUDA_MPS_LOG_DIRECTORY": f"{folder}/log"}  # fmt: skip
        self.of_clients = {**self.where, **renumbered(os.environ.get("CUDA_VISIBLE_DEVICES"))}
        self.log = Path(folder) / "log"
        for name in ("pipe", "log"):
            (Path(folder) / name).mkdir()

    def start(self) -> str:
        """Nothing, or why not."""
        done = subprocess.run(["nvidia-cuda-mps-control", "-d"], env=self.where, timeout=20,
                              capture_output=True, text=True, check=False)  # fmt: skip
        return "" if done.returncode == 0 else (done.stdout + done.stderr).strip() or "it failed"

    def tell(self, command: str) -> str:
        done = subprocess.run(["nvidia-cuda-mps-control"], env=self.where, input=f"{command}\n",
                              timeout=30, capture_output=True, text=True, check=False)  # fmt: skip
        return (done.stdout + done.stderr).strip()

    def said(self) -> str:
        lines = [line for file in sorted(self.log.glob("*.log"))
                 for line in file.read_text(errors="replace").splitlines()]  # fmt: skip
        return "\n".join(f"    {line[:160]}" for line in lines[-25:])


class Client:
    """A process on the service; it has begun its work once it is made."""

    def __init__(self, service: Service, what: str, allocator: str, **more: str) -> None:
        import allocators

        command = [sys.executable, __file__, "--client", what, "--allocator", allocator]
        self.process = allocators.start(
            [*command, "--for-seconds", more.pop("seconds", "10")],
            env={**service.of_clients, **more}, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip

    def wait_ready(self) -> None:
        assert self.process.stdout is not None
        if "ready" not in self.process.stdout.readline():
            raise AssertionError(f"a client did not begin: {self.end()}")

    def end(self, seconds: float = 60) -> dict[str, Any]:
        import allocators

        try:
            out, err = self.process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            allocators.kill(self.process)
            out, err = self.process.communicate()
            err += "\nkilled: it did not end in time"
        rows = [json.loads(line) for line in out.splitlines() if line.startswith("{")]
        found: dict[str, Any] = rows[-1] if rows else {}
        if self.process.returncode != 0:
            found |= {"status": self.process.returncode, "error": err.strip().splitlines()[-6:]}
        return found


def is_well(found: dict[str, Any]) -> bool:
    return "status" not in found and found.get("wrong", 0) == 0 and bool(found.get("mps"))


# ---- Cases -------------------------------------------------------------------------------------


def together(service: Service) -> list[dict[str, Any]]:
    clients = [Client(service, "work", "ductile") for _ in range(2)]
    for client in clients:
        client.wait_ready()
    return [client.end() for client in clients]


def limited_on(service: Service, allocator: str) -> list[dict[str, Any]]:
    client = Client(service, "fill", allocator,
                    CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=f"0={LIMIT_MIB}M")  # fmt: skip
    return [client.end()]


def limited(service: Service) -> list[dict[str, Any]]:
    return limited_on(service, "ductile")


def native(service: Service) -> list[dict[str, Any]]:
    return limited_on(service, "native")


def set_by_service(service: Service) -> list[dict[str, Any]]:
    """For servers that begin later: the one that runs is ended first."""
    for server in service.tell("get_server_list").split():
        service.tell(f"shutdown_server {server} -f")
    said = service.tell(f"set_default_device_pinned_mem_limit 0 {LIMIT_MIB}M")
    found = Client(service, "fill", "ductile").end()
    service.tell("set_default_device_pinned_mem_limit 0 0")
    for server in service.tell("get_server_list").split():
        service.tell(f"shutdown_server {server} -f")
    return [{**found, "service_said": said}]


def killed(service: Service) -> list[dict[str, Any]]:
    """The one that lives is at work all the time, and looks at what is free at its end."""
    victim = Client(service, "work", "ductile", seconds="60")
    victim.wait_ready()
    other = Client(service, "work", "ductile", seconds="12")
    other.wait_ready()
    time.sleep(3)
    victim.process.kill()
    victim.process.wait()
    found = other.end()
    return [{**found, "after": Client(service, "work", "ductile", seconds="2").end()}]


CASES = {"together": together, "limited": limited, "set": set_by_service, "native": native,
         "killed": killed}  # fmt: skip


def run_cases(service: Service, seconds: float) -> int:
    failed, begin = 0, time.monotonic()
    for name, case in CASES.items():
        if time.monotonic() - begin > seconds:
            print(f"{name:9} not begun: the time is over", flush=True)
            failed += 1
            continue
        try:
            found = case(service)
        except Exception as error:
            found = [{"status": -1, "error": str(error)}]
        well = all(is_well(one) and is_well(one.get("after", one)) for one in found)
        failed += not well
        print(f"{name:9} {'ok' if well else 'FAILED'}", flush=True)
        print(*(f"    {json.dumps(one)}" for one in found), sep="\n", flush=True)
    print(service.said())
    return failed


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=100, help="no case begins later")
    parser.add_argument("--client", choices=("fill", "work"), help=argparse.SUPPRESS)
    parser.add_argument("--allocator", default="ductile", help=argparse.SUPPRESS)
    parser.add_argument("--for-seconds", type=float, default=10, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.client:
        return be_client(given)
    if not shutil.which("nvidia-cuda-mps-control"):
        print("there is no nvidia-cuda-mps-control")
        return SKIPPED
    with tempfile.TemporaryDirectory() as folder:
        service = Service(folder)
        refusal = service.start()
        if refusal:
            print(f"the service cannot be started: {refusal}\n{service.said()}")
            return SKIPPED
        try:
            return 1 if run_cases(service, given.seconds) else 0
        finally:
            service.tell("quit -t 5")


if __name__ == "__main__":
    sys.exit(main())
