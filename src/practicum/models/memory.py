"""What the process does with memory that is free again, how much there is, and the most it ever held."""

from __future__ import annotations

import ctypes
import sys
from pathlib import Path
from typing import Any

M_TRIM_THRESHOLD, M_MMAP_MAX, M_ARENA_MAX = -1, -4, -8


def keep_freed_memory() -> bool:
    """Let the C library keep large freed blocks instead of giving them back; False where it is not glibc.

    A training pass allocates and frees the same blocks of tens of megabytes over and over. Given back, each is cleared
    by the kernel page by page when it is asked for again: 4.7 of 10.8 s for a tree of 1,600 tokens of SmolLM2-135M,
    which takes 5.7 s without. The process keeps its peak until it ends.
    """
    if not sys.platform.startswith("linux"):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    settings = ((M_MMAP_MAX, 0), (M_TRIM_THRESHOLD, 2**31 - 1), (M_ARENA_MAX, 1))
    return all(mallopt(name, value) == 1 for name, value in settings)


def give_back_freed() -> None:
    """Give back what is free now, also between blocks in use: what comes next is shaped differently and cannot use it.

    To be called now and then, between a training pass and whatever follows; does nothing where it is not glibc.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform.startswith("linux") else None
    if trim is not None:
        trim(0)


def free_memory(device: Any = None) -> int | None:
    """Bytes that this machine, or a torch device of it that has memory of its own, can still give; None if unknown."""
    if device is not None and device.type == "cuda":
        import torch

        return int(torch.cuda.mem_get_info(device)[0])
    file = Path("/proc/meminfo")
    lines = file.read_text().splitlines() if file.is_file() else []
    found = [int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")]
    return found[0] if found else None


def peak_bytes() -> dict[str, int]:
    """The most that this process ever held at once: of the machine's memory "peak", of a GPU's "gpu_peak" if in use."""
    found = {}
    status = Path("/proc/self/status")
    lines = status.read_text().splitlines() if status.is_file() else []
    if high := [line for line in lines if line.startswith("VmHWM:")]:
        found["peak"] = int(high[0].split()[1]) * 1024
    elif not sys.platform.startswith("win"):
        import resource

        unit = 1 if sys.platform == "darwin" else 1024
        found["peak"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
    torch = sys.modules.get("torch")  # nobody who has not imported it has used a GPU through it
    if torch is not None and torch.cuda.is_available() and torch.cuda.is_initialized():
        found["gpu_peak"] = int(torch.cuda.max_memory_allocated())
    return found
