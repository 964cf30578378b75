#!/usr/bin/env bash
# Take out of /opt/slipway what training never loads. Each line: what, and why it is safe; the saving is printed.
#
# A pattern that matches nothing fails the build: the wheels changed, so look again. What links to what was read with
# ldd, which self_check.py repeats on the result. All of it was tried on CPUs only.
set -euo pipefail
shopt -s globstar nullglob
cd /opt/slipway/lib/python3.*/site-packages

total=0
size() { du --summarize --bytes --total "$@" | tail --lines=1 | cut --fields=1; }
saved() {
    total=$((total + $1))
    printf 'trim: %8.1f MB  %s\n' "$(bc_mb "$1")" "$2"
}
bc_mb() { awk -v bytes="$1" 'BEGIN { print bytes / 1e6 }'; }

drop() { # drop WHY PATH…
    local why="$1" bytes
    shift
    (($# > 0)) || { echo "trim: nothing matches: $why" >&2; exit 1; }
    bytes=$(size "$@")
    rm --recursive "$@"
    saved "$bytes" "$why"
}

strip_symbols() { # strip_symbols PATH…
    local before
    before=$(size "$@")
    strip --strip-unneeded "$@"
    saved $((before - $(size "$@"))) "symbols that only a debugger reads, in ${*##*/}"
}

drop "cuSOLVER over several GPUs: nothing in torch links it" nvidia/cusolver/lib/libcusolverMg.so.*
drop "nvrtc's alternative build, for drivers older than CUDA 12's" nvidia/cuda_nvrtc/lib/*.alt.so.*
drop "C++ that Cython made of cuda.bindings, compiled beside it" cuda/bindings/**/*.cpp
drop "static libraries: nothing is linked here" ./**/*.a
drop "triton: AMD's device libraries" triton/backends/amd/lib
drop "triton: the hardware counters' host library, for its profiler" triton/backends/nvidia/lib/cupti/libnvperf_host.so
drop "triton: instrumentation passes that its own tests load" triton/instrumentation/*.so triton/FileCheck
drop "protoc: torch's Python needs no protocol compiler" torch/bin/protoc*
drop "NVIDIA's headers: there is no nvcc here; triton brings its own" nvidia/*/include
drop "the packages' own tests" numpy/**/tests sympy/**/tests networkx/**/tests mpmath/tests

strip_symbols triton/_C/*.so
strip_symbols torch/lib/libtorch_{cpu,cuda,cuda_linalg,python}.so
strip_symbols nvidia/nccl/lib/libnccl.so.2

printf 'trim: %8.1f MB in all\n' "$(bc_mb "$total")"
