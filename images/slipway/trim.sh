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

# What comes with CUDA. An image without CUDA has no folder of NVIDIA's; self_check.py makes sure that only such an image has none.
trim_cuda() {
    drop "cuSOLVER over several GPUs: nothing in torch links it" nvidia/*/lib/libcusolverMg.so.*
    drop "nvrtc's alternative build, whose types have the sizes of Windows (LLP64, long of 32 bits): torch opens the other" nvidia/*/lib/*.alt.so.*
    if [[ -d nvidia/cusolver ]]; then # as CUDA 12 has it; the bindings of CUDA 13 come without their sources
        drop "C++ that Cython made of cuda.bindings, compiled beside it" cuda/bindings/**/*.cpp
    fi
    drop "triton: AMD's device libraries" triton/backends/amd/lib
    drop "triton: the hardware counters' host library, for its profiler" triton/backends/nvidia/lib/cupti*/libnvperf_host.so
    drop "triton: instrumentation passes that its own tests load" triton/instrumentation/*.so triton/FileCheck
    drop "NVIDIA's headers: there is no nvcc here; triton brings its own" nvidia/*/include
    drop "NVSHMEM's device code, for linking into kernels of one's own" nvidia/nvshmem/lib/libnvshmem_device.bc
    drop "CUPTI's hardware counters: torch's profiler records activities" nvidia/*/lib/lib{nvperf_host,nvperf_target,pcsamplingutil,checkpoint}.so
    strip_symbols triton/_C/*.so
    strip_symbols torch/lib/libtorch_{cuda,cuda_linalg}.so
    strip_symbols nvidia/nccl/lib/libnccl.so.2
}

trim_all() {
    drop "static libraries: nothing is linked here" ./**/*.a
    drop "protoc: torch's Python needs no protocol compiler" torch/bin/protoc*
    drop "torch's headers: they need nvcc or g++, and neither is here" torch/include
    drop "pyarrow: services and formats besides parquet" pyarrow/libarrow_{flight,python_flight,s3}.so* \
        pyarrow/_{flight,s3fs}.*.so
    drop "pyarrow: what its C++ and Cython users compile and link with" pyarrow/include pyarrow/src pyarrow/**/*.{pyx,pxd,pxi} \
        pyarrow/libarrow_python*.so pyarrow/libarrow_python*.so.*.*
    if [[ -d tensorboard_data_server/bin ]]; then # its wheel for arm64 has none
        drop "TensorBoard's server in Rust: the one in Python reads the same files" tensorboard_data_server/bin
    fi
    drop "the packages' own tests" {numpy,sympy,networkx}/**/tests {mpmath,pyarrow}/tests
    strip_symbols torch/lib/libtorch_{cpu,python}.so
    strip_symbols pyarrow/*.so*
    strip_symbols hf_xet/*.so obstore/*.so tokenizers/*.so yaml/*.so PIL/*.so
}

if [[ -d nvidia ]]; then trim_cuda; fi
trim_all
if [[ -d torch/test ]]; then drop "torch's own tests, in C++, which CPU builds contain" torch/test torch/bin/test_*; fi
if [[ -d torchvision ]]; then strip_symbols torchvision/_C*.so; fi

printf 'trim: %8.1f MB in all\n' "$(bc_mb "$total")"
