# SPDX-License-Identifier: Apache-2.0
"""A number that a writer publishes and readers wait for, in memory that processes share.

The number is odd while a writer writes, and even when what it wrote is whole. Who writes or reads
holds a lock of the kernel's, which goes with its process: the death of either side holds up no
other. A writer that died in the middle leaves the number odd; readers wait for the next one.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import mmap
import os
import socket
import time
from collections.abc import Iterator
from typing import Callable, Optional

from ductile_gpu.interface import Closes

_BYTES = mmap.PAGESIZE
_LONGEST_NAP = 0.002
_MARK = b"e"


class Epoch(Closes):
    """Orders a writer and its readers, in one process or several.

        with epoch.write(torch.cuda.synchronize):       # the trainer
            update(weights)
        with epoch.read(after=seen, finish=torch.cuda.synchronize) as seen:  # the generator
            generate(weights)

    Work on a GPU is done when the streams say so, not when a call returns: `finish` has to wait for
    the work of the block, since Ductile does not know its streams.

    A process that waits looks again every 2 ms at most, and turns are not fair: a writer that
    begins again at once may keep readers waiting for long.

    Args:
        descriptor: of another Epoch's memory, which this one takes over; None makes new memory.
    """

    def __init__(self, descriptor: Optional[int] = None) -> None:
        self._descriptor = (
            descriptor if descriptor is not None else os.memfd_create("ductile-epoch")
        )
        try:
            if descriptor is None:
                os.ftruncate(self._descriptor, _BYTES)
            if os.fstat(self._descriptor).st_size < _BYTES:
                raise ValueError("the descriptor is not of an Epoch")
            self._page = mmap.mmap(self._descriptor, _BYTES)
        except BaseException:
            os.close(self._descriptor)
            raise
        self._number = ctypes.c_uint64.from_buffer(self._page)

    def fileno(self) -> int:
        """The descriptor of the memory; it stays this object's."""
        return self._descriptor

    @property
    def number(self) -> int:
        """The latest published number, or one more while a writer writes, or after it died so."""
        return self._number.value

    # ---- To other processes --------------------------------------------------------------------

    def send(self, connection: socket.socket) -> None:
        """Passes it over a UNIX-domain socket, to a process that calls `receive`."""
        socket.send_fds(connection, [_MARK], [self._descriptor])

    @classmethod
    def receive(cls, connection: socket.socket) -> Epoch:
        """The Epoch that another process sends. Raises OSError when it does not come."""
        said, descriptors, _, _ = socket.recv_fds(connection, len(_MARK), 1)
        if said != _MARK or len(descriptors) != 1:
            for descriptor in descriptors:
                os.close(descriptor)
            raise OSError("the other side sent no epoch")
        return cls(descriptors[0])

    # ---- Turns ---------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _locked(
        self, kind: int, is_time: Callable[[], bool], timeout: Optional[float]
    ) -> Iterator[None]:
        """Holds the lock while `is_time` is true. Each user has one of its own: threads, too."""
        until = float("inf") if timeout is None else time.monotonic() + timeout
        file = os.open(f"/proc/self/fd/{self._descriptor}", os.O_RDWR | os.O_CLOEXEC)
        owner = os.getpid()
        try:
            nap = 0.0001
            while True:
                with contextlib.suppress(BlockingIOError):
                    fcntl.flock(file, kind | fcntl.LOCK_NB)
                    if is_time():
                        break
                    fcntl.flock(file, fcntl.LOCK_UN)
                if time.monotonic() >= until:
                    raise TimeoutError("the other side did not come to an end in time")
                time.sleep(nap)
                nap = min(2 * nap, _LONGEST_NAP)
            yield
        finally:
            if os.getpid() == owner:  # a process forked meanwhile keeps the file open
                fcntl.flock(file, fcntl.LOCK_UN)
            os.close(file)

    @contextlib.contextmanager
    def write(
        self, finish: Optional[Callable[[], object]] = None, timeout: Optional[float] = None
    ) -> Iterator[int]:
        """Alone with the memory; what was written is published at the end, as the number given.

        If the block or `finish` raises, nothing is published: readers wait for the next writer.

        Args:
            finish: waits for the block's work on the GPU.
            timeout: seconds to wait for readers and another writer; None: as long as it takes.

        Raises:
            TimeoutError: they did not end in time; nothing was begun.
        """
        with self._locked(fcntl.LOCK_EX, lambda: True, timeout):
            next_even = (self._number.value | 1) + 1
            self._number.value = next_even - 1
            yield next_even
            if finish is not None:
                finish()
            self._number.value = next_even

    @contextlib.contextmanager
    def read(
        self,
        after: int = 0,
        finish: Optional[Callable[[], object]] = None,
        timeout: Optional[float] = None,
    ) -> Iterator[int]:
        """With other readers, and no writer, on what is whole and newer than `after`.

        Gives its number.

        Args:
            after: wait for a later number; 0: what was published first is new enough.
            finish: waits for the block's work on the GPU, also when the block raises.
            timeout: seconds to wait; None: as long as it takes.

        Raises:
            TimeoutError: nothing newer was published in time, or a writer died while it wrote.
        """

        def is_new() -> bool:
            return self._number.value % 2 == 0 and self._number.value > after

        with self._locked(fcntl.LOCK_SH, is_new, timeout):
            try:
                yield self._number.value
            finally:
                if finish is not None:
                    finish()

    def close(self) -> None:
        """Lets go of the memory. A second call does nothing."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            del self._number
            self._page.close()
            os.close(descriptor)

    def __del__(self) -> None:
        if getattr(self, "_descriptor", -1) >= 0 and hasattr(self, "_page"):
            self.close()
