#!/usr/bin/env bash
# Sort what was installed into one folder per layer, from rarely to often changed. Called by the Dockerfile.
#
#   split.sh             /opt/slipway, as the lock installed it -> /layers/{system,nvidia,torch,packages}
#   split.sh code /src   our code, installed from /src          -> /layers/code
#
# Modules are compiled here, not on every start in a file system that may be read-only: `import torch` takes half as
# long. The byte code is not checked against the source's time stamp, and all stamps are the same: a rebuild of the
# same lock gives the same layers, which nobody pulls again.
set -euo pipefail
shopt -s nullglob

venv=/opt/slipway
site=$(echo $venv/lib/python3.*/site-packages)

# Forced: pip came compiled against time stamps, which are about to change.
# torch's own tests have files in the syntax of a newer Python, named after it.
compile() { $venv/bin/python -m compileall -q -f -j 0 -x '/torch/testing/_internal/py3[0-9]+_' --invalidation-mode unchecked-hash "$@"; }

move() { # move LAYER PATH…
    local layer="/layers/$1" path
    shift
    for path in "$@"; do
        mkdir --parents "$layer$(dirname "$path")"
        mv "$path" "$layer$path"
    done
}

if [[ "${1:-}" == code ]]; then
    $venv/bin/pip install --quiet --no-deps --no-build-isolation --no-compile --no-cache-dir "$2"
    compile "$site"/slipway
    move code "$site"/slipway "$site"/slipway.pth "$site"/slipway-*.dist-info $venv/bin/slipway
    install -D --mode=755 /build/entrypoint.sh /layers/code$venv/bin/entrypoint
    install -D --mode=644 --target-directory=/layers/code$venv/share/licenses "$2"/LICENSE
else
    compile "$site"
    mkdir --parents /layers/nvidia # empty without CUDA
    if [[ -d "$site"/nvidia ]]; then move nvidia "$site"/nvidia "$site"/nvidia_*; fi
    move torch "$site"/{torch,torchgen,functorch} "$site"/torch-*.dist-info
    if [[ -d "$site"/triton ]]; then move torch "$site"/triton "$site"/triton-*.dist-info; fi
    move packages $venv
    # Triton compiles against Python's headers; the rest of their package is not needed.
    move system /usr/include/python3.* /usr/include/*/python3.*
    mkdir --parents /layers/system/etc/profile.d
    # Debian's /etc/profile sets PATH anew, and pyxis starts login shells.
    echo "PATH=$venv/bin:\$PATH" >/layers/system/etc/profile.d/slipway.sh
fi
find /layers -exec touch --no-dereference --date=@0 {} +
