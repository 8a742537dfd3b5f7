"""What this machine can do at most: matrix products and reads of memory, measured and not looked up."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

LARGEST = 8192
"Rows and columns of the largest product tried."
ENOUGH_S = 0.05
"A product that takes so long is large enough to show the peak."
ROUNDS = 5
READ_BYTES = 256_000_000
"Of the matrix that is read to measure memory: more than any cache holds."


@dataclass(frozen=True)
class Peaks:
    """The fastest that was seen: Peaks(float32=1.9e11, bfloat16=2.4e11, memory=2.1e10, threads=2, device="cpu")."""

    float32: float
    "Floating-point operations a second of a product of two matrices of this type."
    bfloat16: float
    memory: float
    "Bytes a second, read by a product of a matrix and a vector."
    threads: int
    device: str


def measured_peaks(device: str) -> Peaks:
    """Measure for a second or so; whatever else runs on the machine makes it look slower than it is.

    Example: measured_peaks("cpu").memory / 1e9 -> 21.4
    """
    torch_device = torch.device(device)
    with torch.inference_mode():
        return Peaks(
            product_peak(torch_device, torch.float32),
            product_peak(torch_device, torch.bfloat16),
            memory_peak(torch_device),
            torch.get_num_threads(),
            torch_device.type,
        )


def product_peak(device: torch.device, dtype: torch.dtype) -> float:
    """Operations a second of square products, doubled in size until one takes long enough."""
    size, best = 256, 0.0
    while True:
        a, b = (torch.ones(size, size, dtype=dtype, device=device) for _ in range(2))
        seconds = fastest(device, lambda a=a, b=b: a @ b)  # type: ignore[misc]  # mypy cannot infer defaults
        best = max(best, 2 * size**3 / seconds)
        if seconds >= ENOUGH_S or size == LARGEST:
            return best
        size *= 2


def memory_peak(device: torch.device) -> float:
    """Bytes a second of a matrix that is multiplied with a vector: every number of it is read once, as in decoding."""
    columns = 4096
    matrix = torch.ones(READ_BYTES // 4 // columns, columns, device=device)
    vector = torch.ones(columns, device=device)
    return matrix.numel() * matrix.element_size() / fastest(device, lambda: matrix @ vector)


def fastest(device: torch.device, work: Callable[[], Tensor]) -> float:
    """Seconds of the fastest of some rounds, the first of which only warms up."""
    taken = []
    for _ in range(1 + ROUNDS):
        began = time.perf_counter()
        work()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        taken.append(time.perf_counter() - began)
        if taken[0] > 10 * ENOUGH_S:  # a type that this machine only imitates: one round says enough
            return taken[0]
    return min(taken[1:])
