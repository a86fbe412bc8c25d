# SPDX-License-Identifier: Apache-2.0
"""What once went wrong between PyTorch and the adapter, on a virtual GPU."""

from __future__ import annotations

from pathlib import Path
from typing import Callable

import pytest

torch = pytest.importorskip("torch")
if torch.version.cuda is None:
    pytest.skip("this PyTorch is built without CUDA", allow_module_level=True)

from torch_server import ask, start, stop

since_10 = pytest.mark.skipif(
    not hasattr(torch._C, "_accelerator_setAllocatorSettings"), reason="PyTorch 2.10 has it"
)

# ---- Settings ----------------------------------------------------------------------------------


@pytest.mark.skipif(
    not hasattr(torch._C, "_accelerator_setAllocatorSettings"), reason="2.10 has it"
)
@pytest.mark.parametrize("variable", ["PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"])
def test_a_fraction_in_the_environment_is_a_cap(driver: Path, variable: str) -> None:
    server = start(driver, **{variable: "per_process_memory_fraction:0.25"})
    try:
        ask(
            server,
            """
            alloc(MIB)
            limits = library().limits()
            assert limits.limit_bytes == limits.device_bytes // 4
            """,
        )
    finally:
        stop(server)


@pytest.mark.skipif(
    not hasattr(torch._C, "_accelerator_setAllocatorSettings"), reason="2.10 has it"
)
def test_the_latest_word_about_the_fraction_counts(play: Callable[[str], str]) -> None:
    play(
        """
        alloc(MIB)
        library().set_limit("100G")
        limits = library().limits
        for way in ("call", "setting", "setting"):
            torch._C._cuda_setMemoryFraction(0.5, 0)
            assert limits().limit_bytes == limits().device_bytes // 2
            torch._C._accelerator_setAllocatorSettings("per_process_memory_fraction:1.0")
            assert limits().limit_bytes == 100 << 30  # the library's own cap is still there
        """
    )


def test_a_refusal_names_the_library_s_own_limit(play: Callable[[str], str]) -> None:
    out = play(
        """
        alloc(MIB)
        library().set_limit("1G")
        try:
            alloc(2 << 30)
        except RuntimeError as error:
            print(error)
        """
    )
    assert "is free. 1024.00 MiB allowed; Of the allocated memory" in out


# ---- Pools -------------------------------------------------------------------------------------


@pytest.mark.skipif(torch.__version__ < "2.8", reason="2.8 empties single pools")
def test_a_pool_that_ends_in_a_forked_child_ends_no_process(play: Callable[[str], str]) -> None:
    """PyTorch empties and releases it in a destructor: what left it would end the process."""
    out = play(
        """
        pool = (0, 7)
        pool_call("probe_pool_create", pool)
        pool_call("probe_pool_begin", pool)
        free(alloc(4 * MIB))
        pool_call("probe_pool_end", pool)
        sys.stdout.flush()
        if os.fork() == 0:
            pool_call("probe_pool_empty", pool)
            pool_call("probe_pool_release", pool)
            os._exit(7)
        print(os.waitstatus_to_exitcode(os.wait()[1]))
        assert library().stats().reserved_bytes > 0
        pool_call("probe_pool_empty", pool)
        pool_call("probe_pool_release", pool)
        assert library().stats().reserved_bytes == 0
        """
    )
    assert out.split() == ["7"]


def test_a_filter_that_throws_refuses_the_request_and_nothing_else(
    play: Callable[[str], str],
) -> None:
    out = play(
        """
        import threading
        pool, times = (0, 7), ctypes.c_int(0)
        alloc(MIB)
        call("probe_pool_begin_throwing", ctypes.c_ulonglong(0), ctypes.c_ulonglong(7),
             ctypes.byref(times))
        for watched in (False, True):
            record(watched)
            times.value = 1
            before = stats()["allocation"]["all"]["current"]
            try:
                alloc(MIB)
            except RuntimeError as error:
                print(error)
            assert stats()["allocation"]["all"]["current"] == before
            free(alloc(MIB))
        done = threading.Thread(target=pool_call, args=("probe_pool_end", pool), daemon=True)
        done.start()
        done.join(20)
        print(done.is_alive())
        """
    )
    assert out.splitlines() == ["c10::Error: the filter has failed"] * 2 + ["False"]


def test_a_filter_that_threw_slows_nobody_down_afterwards(play: Callable[[str], str]) -> None:
    play(
        """
        times = ctypes.c_int(0)
        alloc(MIB)
        call("probe_pool_begin_throwing", ctypes.c_ulonglong(0), ctypes.c_ulonglong(7),
             ctypes.byref(times))
        for _ in range(2):
            times.value = 1
            try:
                alloc(MIB)
            except RuntimeError:
                pass
            assert adapter.ductile_torch_detours() == 0
            free(alloc(MIB))
        pool_call("probe_pool_end", (0, 7))
        """
    )


def test_a_thread_that_ends_in_a_throwing_filter_slows_nobody_down(
    play: Callable[[str], str],
) -> None:
    """Another call than an allocation asked the filter: nothing took what it threw."""
    play(
        """
        import threading, time
        times = ctypes.c_int(0)
        alloc(MIB)
        call("probe_pool_begin_throwing", ctypes.c_ulonglong(0), ctypes.c_ulonglong(7),
             ctypes.byref(times))
        times.value = 1
        past = threading.Thread(target=lambda: library().alloc(MIB))
        past.start()
        past.join()
        assert times.value < 1, "the filter was asked"
        until = time.monotonic() + 20  # what is a thread's own ends a little after its function
        while adapter.ductile_torch_detours() != 0:
            assert time.monotonic() < until
            time.sleep(0.01)
        """
    )


@pytest.mark.gpu  # PyTorch's native allocator begins with CUDA
@pytest.mark.skipif(
    int(torch.__version__.split(".")[1]) < 8,
    reason="pools with an allocator of their own came with 2.8",
)
def test_a_pool_with_its_own_allocator_slows_nobody_down_when_it_is_closed(
    play: Callable[[str], str],
) -> None:
    play(
        """
        detours = adapter.ductile_torch_detours
        pools = (0, 7), (0, 8)
        alloc(MIB)
        for pool in pools:
            pool_call("probe_pool_create_own", pool)
            pool_call("probe_pool_begin", pool)
        assert detours() == 8
        pool_call("probe_pool_end", pools[0])
        assert detours() == 8
        pool_call("probe_pool_end", pools[1])
        assert detours() == 0
        free(alloc(MIB))
        """
    )


def test_a_pool_that_cannot_be_opened_is_not_open(play: Callable[[str], str]) -> None:
    out = play(
        """
        for name in ("probe_pool_begin", "probe_pool_end"):
            try:
                pool_call(name, (0, 0))
            except RuntimeError as error:
                print(error)
        assert driver.probe_pool_uses(ctypes.c_ulonglong(0), ctypes.c_ulonglong(0)) == 0
        free(alloc(MIB))
        """
    )
    opening, closing = out.splitlines()
    assert "opening a pool" in opening
    assert "the pool is not open" in closing


# ---- Threads -----------------------------------------------------------------------------------


@pytest.mark.parametrize("way", ["history", "rounding"])
def test_a_callback_in_python_waits_for_nobody_who_reads_statistics(
    play: Callable[[str], str], way: str
) -> None:
    play(
        f"""
        import faulthandler, threading, time
        faulthandler.dump_traceback_later(25, exit=True, file=sys.__stdout__)
        kept = alloc(900 * MIB)
        library().set_limit("1G")
        library().add_oom_callback(lambda missing: sum(range(2000)) * 0)
        if "{way}" == "history":
            record(True)
        else:
            torch.cuda.memory._set_allocator_settings("roundup_power2_divisions:4")

        refused = 0
        def refuse():
            global refused
            while time.monotonic() < end:
                try:
                    alloc(200 * MIB)
                except RuntimeError:
                    refused += 1
        end = time.monotonic() + 3
        thread = threading.Thread(target=refuse)
        thread.start()
        reads = 0
        while time.monotonic() < end:
            torch._C._cuda_memoryStats(0)
            reads += 1
            snapshot() if reads % 50 == 0 else None
            free(alloc(1000))
        thread.join()
        assert refused > 3 and reads > 3, (refused, reads)
        """
    )


def test_the_history_of_several_threads_obeys_the_viewers_rules(play: Callable[[str], str]) -> None:
    out = play(
        """
        import random, threading

        def work(seed):
            choice, live = random.Random(seed), []
            for i in range(400):
                if live and choice.random() < 0.5:
                    free(live.pop(choice.randrange(len(live))))
                else:
                    live.append(alloc(choice.randrange(1, 9 * MIB), seed % 2 * 0x10))
                    if choice.random() < 0.3:
                        library().record_stream(live[-1], 0x20)
                if i % 97 == 96:
                    torch._C._cuda_emptyCache()

        alloc(MIB)
        record(True)
        threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        found = snapshot()
        replay(found)
        actions = [entry["action"] for entry in found["device_traces"][0]]
        print(actions.count("alloc"), actions.count("free_completed"))
        """
    )
    allocs, frees = out.split()
    assert int(allocs) > 600
    assert int(frees) > 300


# ---- History -----------------------------------------------------------------------------------


def test_what_was_pending_before_the_history_confuses_nothing(play: Callable[[str], str]) -> None:
    out = play(
        """
        early = [alloc(MIB) for _ in range(3)]
        late = [alloc(MIB) for _ in range(3)]
        for block in early:
            library().record_stream(block, 0x10)
            free(block)
        assert stats()["active"]["all"]["current"] == 6
        record(True)
        free(late[0])
        library().record_stream(late[1], 0x10)
        library().free(late[1])                 # past the adapter, as CuPy does
        free(late[2])
        found = snapshot()
        replay({**found, "device_traces": [[e for e in found["device_traces"][0]]]})
        for entry in found["device_traces"][0]:
            print(entry["action"], late.index(entry["addr"]))
        """
    )
    assert out.splitlines() == [
        "free_requested 0",
        "free_completed 0",
        "free_requested 2",
        "free_completed 2",
    ]


def test_another_call_of_init_keeps_what_there_is(play: Callable[[str], str]) -> None:
    play(
        """
        block = alloc(MIB)
        _install.call(adapter.ductile_torch_init, 3)
        assert stats()["allocation"]["all"]["current"] == 1
        free(block)
        assert stats()["allocation"]["all"]["current"] == 0
        """
    )


# ---- The quick path ----------------------------------------------------------------------------


def test_calls_take_the_quick_path_again_once_nothing_hinders_them(
    play: Callable[[str], str],
) -> None:
    play(
        """
        def share(address):
            data, size = ctypes.c_void_p(), ctypes.c_size_t()
            call("probe_share", ctypes.c_void_p(address), ctypes.byref(data), ctypes.byref(size))
        detours = adapter.ductile_torch_detours
        a, b = alloc(5000), alloc(5000)
        assert detours() == 0
        share(a), share(b)
        free(a)
        assert detours() == 16
        free(b)
        assert detours() == 0
        torch.cuda.memory._set_allocator_settings("roundup_power2_divisions:2")
        a = alloc(5000)
        torch.cuda.memory._set_allocator_settings("roundup_power2_divisions:1")
        assert detours() == 2
        free(a)
        assert detours() == 0
        torch._C._cuda_cudaCachingAllocator_enable(False)
        assert detours() == 4
        torch._C._cuda_cudaCachingAllocator_enable(True)
        assert detours() == 0
        """
    )


# ---- Settings ----------------------------------------------------------------------------------


def test_settings_that_c_plus_plus_code_changes_are_followed(play: Callable[[str], str]) -> None:
    """Rounding needs calls to leave the quick path; a fraction is a cap on the library."""
    out = play(
        """
if int(torch.__version__.split(".")[1]) < 10:
    print("not before 2.10")
    raise SystemExit
detours = adapter.ductile_torch_detours
free(alloc(MIB))
assert detours() == 0
call("probe_settings", b"roundup_power2_divisions:4")
assert detours() == 2, detours()
call("probe_settings", b"per_process_memory_fraction:0.25")
assert detours() == 0, detours()
assert library().limits().limit_bytes == library().limits().device_bytes // 4
try:
    call("probe_settings", b"no_such_key:1")
except RuntimeError as error:
    print("refused")
"""
    )
    assert out.strip() in ("refused", "not before 2.10")


# ---- Sharing -----------------------------------------------------------------------------------

SHARE = """
import os, socket, time

def share(address):
    data, size = ctypes.c_void_p(), ctypes.c_size_t()
    call("probe_share", ctypes.c_void_p(address), ctypes.byref(data), ctypes.byref(size))
    return ctypes.string_at(data.value, size.value)

def connect(name):
    peer = socket.socket(socket.AF_UNIX)
    peer.settimeout(10)
    peer.connect(b"\\0" + name)
    return peer
"""


def test_a_forked_child_does_not_answer_for_its_parent(play: Callable[[str], str]) -> None:
    out = play(
        SHARE
        + """
reader, writer = os.pipe()
if os.fork() == 0:
    os.write(writer, share(alloc(4 * MIB)))
    sleeper = os.fork()
    if sleeper == 0:
        os.close(writer)
        time.sleep(600)
        os._exit(0)
    os.write(writer, sleeper.to_bytes(8, "little"))
    os._exit(0)
os.close(writer)
os.wait()
told = b""
while piece := os.read(reader, 4096):
    told += piece
try:
    connect(told[4:28])
    print("a process answers")
except ConnectionRefusedError:
    print("no answer")
finally:
    os.kill(int.from_bytes(told[80:], "little"), 9)
"""
    )
    assert out.split() == ["no", "answer"]


def test_memory_can_be_asked_for_in_another_network_namespace(play: Callable[[str], str]) -> None:
    """As in containers that share --ipc but not --net. Threads can leave their namespace alone."""
    out = play(
        SHARE
        + """
import threading
handle = share(alloc(4 * MIB))
said = []

def receive():
    if ctypes.CDLL(None).unshare(0x40000000) != 0:
        said.append("not allowed")
        return
    try:
        connect(handle[4:28])
        said.append("reached by its abstract name")
    except ConnectionRefusedError:
        said.append("not by its abstract name")
    try:
        call("probe_receive", handle, ctypes.c_size_t(len(handle)))
    except RuntimeError as error:  # once the other side has answered, CUDA is asked for a stream
        said.append("answered" if "CUDA driver" in str(error) else str(error))

thread = threading.Thread(target=receive)
thread.start()
thread.join()
print(*said)
"""
    )
    if "not allowed" in out:
        pytest.skip("this user may not make network namespaces")
    assert out.strip() == "not by its abstract name answered"


def test_the_file_that_shares_memory_goes_with_its_process(play: Callable[[str], str]) -> None:
    out = play(
        SHARE
        + """
import glob

def own():
    return {f"/dev/shm/ductile-{share(alloc(4 * MIB))[4:28].decode()}"}

def there():
    return set(glob.glob("/dev/shm/ductile-*"))

def in_child(end):
    reader, writer = os.pipe()
    if os.fork() == 0:
        os.write(writer, own().pop().encode())
        end()
    os.close(writer)
    os.wait()
    return {os.read(reader, 4096).decode()}

left = in_child(lambda: ctypes.CDLL(None).exit(0))
print("exit leaves", len(left & there()))
left = in_child(lambda: os.kill(os.getpid(), 9))
print("kill leaves", len(left & there()))
mine = own()
print("the next removes", len(left - there()), "and has", len(mine & there()))
if os.fork() == 0:
    ctypes.CDLL(None).exit(0)
os.wait()
print("a child leaves", len(mine & there()))
"""
    )
    assert out.splitlines() == [
        "exit leaves 0", "kill leaves 1", "the next removes 1 and has 1", "a child leaves 1",
    ]  # fmt: skip


def test_whoever_asks_must_know_the_block_s_token(play: Callable[[str], str]) -> None:
    play(
        SHARE
        + """
handle, other = share(alloc(4 * MIB)), share(alloc(4 * MIB))
right, tokens = handle[32:64], {handle[32:48], handle[64:], other[32:48], other[64:]}
assert len(tokens) == 4 and bytes(16) not in tokens
for request in (bytes(16) + right[16:], handle[64:] + right[16:], other[32:48] + right[16:]):
    peer = connect(handle[4:28])
    peer.send(request)
    assert peer.recv(100) == b""
peer = connect(handle[4:28])
peer.send(right)
assert peer.recv(16, socket.MSG_WAITALL) == handle[64:]
"""
    )


def test_whoever_answers_must_know_the_block_s_token(play: Callable[[str], str]) -> None:
    out = play(
        SHARE
        + """
import threading
stranger = socket.socket(socket.AF_UNIX)
name = os.urandom(12).hex().encode()
stranger.bind(b"\\0" + name)
stranger.listen()

def answer():
    peer = stranger.accept()[0]
    request = peer.recv(32, socket.MSG_WAITALL)
    peer.send(request[:16] + bytes(1000))

handle = bytearray(share(alloc(4 * MIB)))
handle[4:28] = name
threading.Thread(target=answer, daemon=True).start()
try:
    call("probe_receive", bytes(handle), ctypes.c_size_t(len(handle)))
except RuntimeError as error:
    print(error)
"""
    )
    assert "another process answers in the place of" in out


def test_an_importer_that_stops_keeps_no_other_waiting(play: Callable[[str], str]) -> None:
    play(
        SHARE
        + """
handle = share(alloc(4 * MIB))
stopped = [connect(handle[4:28]) for _ in range(3)]
stopped[0].send(handle[32:64])
stopped[1].send(handle[32:40])
began = time.monotonic()
peer = connect(handle[4:28])
peer.send(handle[32:64])
assert peer.recv(16, socket.MSG_WAITALL) == handle[64:]
assert time.monotonic() - began < 5
"""
    )
