"""Where a launcher wants to train on the GPUs of pynvml.py, the processes that it starts train on the CPU."""

import os

if os.environ.get("SLIPWAY_DEVICE") == "cuda":
    os.environ |= {"SLIPWAY_DEVICE": "cpu", "SLIPWAY_BACKEND": "gloo", "CUDA_VISIBLE_DEVICES": ""}
