"""Memory that a replay binds tensors in: the host's, or a CUDA device's."""

from __future__ import annotations

import ctypes
from typing import Protocol

import numpy as np

POISON = 0xFF
"""All ones: NaN for every float type, -1 for integers."""

_HOST_TO_DEVICE, _DEVICE_TO_HOST = 1, 2

_PAGE = 4096
"""Bytes; arenas begin at a multiple of it."""


class Memory(Protocol):
    """One arena."""

    device: str
    address: int

    def poison(self, offset: int, size: int) -> None:
        """Make some bytes unusable."""

    def read(self, offset: int, size: int) -> bytes:
        """Copy some bytes to the host."""

    def write(self, offset: int, data: bytes) -> None:
        """Copy some bytes from the host."""


class HostMemory:
    """An arena in the memory of this process, poisoned from the start."""

    device = "cpu"

    def __init__(self, size: int) -> None:
        """Take ``size`` bytes on a page boundary."""
        self._bytes = np.full(size + _PAGE, POISON, np.uint8)
        start = -self._bytes.ctypes.data % _PAGE
        self._arena = self._bytes[start : start + size]
        self.address = int(self._bytes.ctypes.data) + start

    def poison(self, offset: int, size: int) -> None:
        """Make some bytes unusable."""
        self._arena[offset : offset + size] = POISON

    def read(self, offset: int, size: int) -> bytes:
        """Copy some bytes."""
        return self._arena[offset : offset + size].tobytes()

    def write(self, offset: int, data: bytes) -> None:
        """Copy some bytes."""
        self._arena[offset : offset + len(data)] = np.frombuffer(data, np.uint8)


class DeviceMemory:
    """An arena inside one OrtValue on a CUDA device, poisoned from the start."""

    device = "cuda"

    def __init__(self, size: int) -> None:
        """Take ``size`` bytes on device 0."""
        import onnxruntime as ort

        self._value = ort.OrtValue.ortvalue_from_shape_and_type(
            [max(size, 1)], np.uint8, "cuda", 0
        )
        self.address = int(self._value.data_ptr())
        self._runtime = _cuda_runtime()
        self.poison(0, size)

    def poison(self, offset: int, size: int) -> None:
        """Make some bytes unusable."""
        self._check(
            self._runtime.cudaMemset(
                ctypes.c_void_p(self.address + offset), POISON, ctypes.c_size_t(size)
            )
        )
        self._check(self._runtime.cudaDeviceSynchronize())

    def read(self, offset: int, size: int) -> bytes:
        """Copy some bytes to the host."""
        self._check(self._runtime.cudaDeviceSynchronize())
        data = ctypes.create_string_buffer(size)
        there = ctypes.c_void_p(self.address + offset)
        self._copy(data, there, size, _DEVICE_TO_HOST)
        return data.raw

    def write(self, offset: int, data: bytes) -> None:
        """Copy some bytes from the host."""
        there = ctypes.c_void_p(self.address + offset)
        self._copy(there, ctypes.c_char_p(data), len(data), _HOST_TO_DEVICE)

    def _copy(self, target: object, source: object, size: int, way: int) -> None:
        self._check(self._runtime.cudaMemcpy(target, source, ctypes.c_size_t(size), way))

    @staticmethod
    def _check(code: int) -> None:
        if code:
            raise OSError(f"the CUDA runtime returned error {code}")


def _cuda_runtime() -> ctypes.CDLL:
    """Return the CUDA runtime library: ONNX Runtime has loaded it already."""
    for name in ("libcudart.so.13", "libcudart.so.12", "cudart64_13.dll", "cudart64_12.dll"):
        try:
            return ctypes.CDLL(name)
        except OSError:
            continue
    raise OSError("the CUDA runtime library is not loaded")
