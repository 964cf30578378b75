#!/usr/bin/env bash
# Build an image of the family: `make image`. `make image VARIANT=… BASE=… CA=… PIP_CONF=… IMAGE=…` change what is built, from what,
# and what it is called.
#
# TARGET=launcher builds the part of it that goes into an image of one's own (`make launcher`), which has no PyTorch.
#
# WHEELS is the index or the folder of a PyTorch that is not on the package index, such as the CPU builds. Without it pip looks where
# its own configuration says.
set -euo pipefail
cd "$(dirname "$0")/.."

say() { echo "image: $*" >&2; }

# shellcheck source=images/variant.sh
source images/variant.sh
base="${BASE:-debian:$SUITE-slim}"
target=()
if [[ -n "${TARGET:-}" ]]; then
    target=(--target "$TARGET" --platform "linux/$ARCHITECTURE") LOCK=locks/requirements.lock FETCHED="40 MB"
    ARCHITECTURE=$(docker version --format '{{.Server.Arch}}' 2>/dev/null || echo "$ARCHITECTURE") # on which it is made
fi

if [[ " $MADE_FOR " != *" $ARCHITECTURE "* ]]; then
    say "the image $variant is for $MADE_FOR, and this machine is $ARCHITECTURE. Type: make image VARIANT=cuda13 (with GPUs) or" \
        "make image VARIANT=cpu"
    exit 78
fi
[[ -z "${COMPRESSION:-}" ]] || say "COMPRESSION=$COMPRESSION counts for make push alone: the engine keeps what it builds unpacked"
if ! why=$(docker version 2>&1); then
    if [[ "$why" == *'permission denied'* ]]; then why="the Docker Engine runs, but $(id -un) may not use it"; else why="no Docker Engine answers"; fi
    say "$why: make engine"
    exit 78
fi

foreign=() own_base="slipway-base:$SUITE"
if [[ "$ARCHITECTURE" != "$(docker version --format '{{.Server.Arch}}')" ]]; then # QEMU has to emulate it
    foreign=(--platform "linux/$ARCHITECTURE") own_base+="-$ARCHITECTURE"
fi

# The named base where it is at hand or a registry has it, else the same from Debian packages, once.
at_hand() { [[ "$(docker image inspect --format '{{.Architecture}}' "$1" 2>/dev/null)" == "$ARCHITECTURE" ]]; }
if [[ -z "${BASE:-}" ]] && ! at_hand "$base"; then
    if ! at_hand "$own_base" && ! said=$(timeout 120 docker pull --quiet "${foreign[@]}" "$base" 2>&1); then
        say "docker pull $base: ${said:-no answer within 120 s}"
        say "taking the same Debian, built from packages (make base)"
        ARCHITECTURE="${foreign[0]:+$ARCHITECTURE}" images/base.sh "$own_base" "$SUITE"
    fi
    if at_hand "$own_base"; then base="$own_base"; fi
fi

# A site's certificate authority (by default this machine's own list) and pip.conf are secrets of the build: they are
# in no layer.
secrets=()
ca="${CA:-/etc/ssl/certs/ca-certificates.crt}"
if [[ -r "$ca" ]]; then secrets+=(--secret "id=ca,src=$ca"); fi
if [[ -n "${PIP_CONF:-}" ]]; then secrets+=(--secret "id=pip,src=$PIP_CONF"); fi

# What `make setup` has fetched is offered to the build, on the bridge that its containers hang on. The address is a secret,
# too: the layers are the same with it and without. An engine elsewhere has no such bridge here; it fetches everything.
offer_wheels() {
    local format='{{with index .IPAM.Config 0}}{{or .Gateway .Subnet}}{{end}}' gateway server work
    gateway=$(docker network inspect bridge --format "$format" 2>/dev/null) || return 0
    if [[ "$gateway" == */* ]]; then gateway="${gateway%.*}.1"; fi # not every engine names it; it is the first address
    work=$(mktemp --directory)
    "$python" -u -m http.server --bind "$gateway" --directory "$wheels" 0 >"$work/said" 2>/dev/null &
    server=$!
    # shellcheck disable=SC2064  # both are known now
    trap "kill $server 2>/dev/null || true; rm --recursive '$work'" EXIT
    touch "$work/said" # before the server opens it
    until grep --only-matching 'http://[0-9.:]*' "$work/said" >"$work/address"; do
        kill -0 "$server" 2>/dev/null || return 0
        sleep 0.1
    done
    secrets+=(--secret "id=wheels,src=$work/address")
}

# A PyTorch that is not on the package index is fetched here, from the place that WHEELS or pip's configuration names.
fetch_torch() {
    local from=() settings=()
    local wheel="torch-$TORCH-cp${PYTHON_VERSION/./}-*.whl"
    if compgen -G "$wheels/$wheel" >/dev/null; then return; fi
    # It was fetched before there was an environment.
    if [[ "$wheels" != build/wheels ]] && compgen -G "build/wheels/$wheel" >/dev/null; then from+=(--find-links build/wheels); fi
    case "${WHEELS:-}" in
        '') ;;
        http*) from+=(--extra-index-url "$WHEELS") ;;
        *) from+=(--find-links "$WHEELS") ;;
    esac
    if [[ -n "${CA:-}" ]]; then settings+=("PIP_CERT=$CA"); fi
    if [[ -n "${PIP_CONF:-}" ]]; then settings+=("PIP_CONFIG_FILE=$PIP_CONF"); fi
    mkdir -p "$wheels" build
    if ! "$python" -m pip --version >/dev/null 2>&1; then # Debian's Python has none of its own
        python=build/pip/bin/python
        [[ -x "$python" ]] || python3 -m venv build/pip
    fi
    awk '/^[a-z]/ { wanted = /^torch(vision)?==/ } wanted' "$LOCK" >build/torch.lock
    say "fetching torch $TORCH"
    env "${settings[@]}" "$python" -m pip download --quiet --disable-pip-version-check --no-deps --require-hashes \
        --only-binary :all: --python-version "$PYTHON_VERSION" "${from[@]}" --requirement build/torch.lock --dest "$wheels" \
        >build/torch.log 2>&1 || {
        # pip says nothing of an index that does not answer, and names conflicting dependencies.
        local why=""
        if [[ "${WHEELS:-}" == http* ]]; then
            why=$("$python" -c 'import sys, urllib.request as web; web.urlopen(sys.argv[1], timeout=20)' "$WHEELS" 2>&1 |
                grep --only-matching --perl-regexp '(?<=URLError: ).*|TimeoutError.*' || true)
        fi
        if [[ -n "$why" ]]; then
            say "torch $TORCH cannot be fetched: $WHEELS cannot be reached from this machine: $why. On one that can reach it, type:" \
                "pip download --no-deps --python-version $PYTHON_VERSION --only-binary :all: --index-url $WHEELS torch==$TORCH --dest wheels;" \
                "then copy the folder to this one, and type: make image VARIANT=$variant WHEELS=/path/to/wheels"
            exit 78
        fi
        cat build/torch.log >&2
        say "torch $TORCH cannot be fetched, for the reason above. The usual package index does not have it: name an index or a folder that" \
            "does, such as one with the downloaded files: make image VARIANT=$variant WHEELS=https://download.pytorch.org/whl/cpu" \
            "or WHEELS=/path/to/folder"
        exit 78
    }
}

python=python3 wheels=build/wheels
if [[ -d .venv/wheels ]]; then python=.venv/bin/python wheels=.venv/wheels; fi
# A package index takes no version with a plus, such as 2.10.0+cpu.
if grep --quiet '^torch==[^ ]*+' "$LOCK"; then fetch_torch; fi
if [[ -d "$wheels" ]]; then offer_wheels; fi

# BuildKit's steps, a line for each that is really taken, with its seconds; what it says besides goes to the log. A long step is
# named every half minute.
show_steps() {
    local line step name=() taken=() last=$SECONDS running
    while IFS= read -r -t "${PAUSE:-5}" line || (($? > 128)); do # above 128: nothing was said for so long
        running=("${name[@]}")
        if ((SECONDS - last >= ${EVERY:-30} && ${#running[@]})); then
            last=$SECONDS
            say "  … after $SECONDS s: ${running[-1]:0:90}"
        fi
        step="${line%% *}"
        step="${step#\#}"
        case "$line" in
            "#$step ["*'] '*)
                [[ "$line" == *'[internal]'* ]] || name[step]=$(sed 's/^[^]]*\] //; s/--mount=[^ ]* //g; s/  */ /g' <<<"$line")
                taken[step]="${line#* [}"
                ;;
            *' wheels: '*) say "  ${line##* wheels: }" ;;
            *' DONE '*)
                [[ -z "${name[step]:-}" || "${line##* }" == 0.* ]] ||
                    say "  ${line##* }  [${taken[step]%%]*}] ${name[step]:0:90}"
                unset "name[step]"
                ;;
            "#$step CACHED"*) unset "name[step]" ;;
        esac
    done
}

version=$(sed -n 's/^version = "\(.*\)"/\1/p' pyproject.toml)
revision=$(git describe --always --dirty --exclude='*' 2>/dev/null || echo unknown)
# When the commit was made, not the image: the same code gives the same image.
created=$(git log -1 --format=%cI 2>/dev/null || true)
# An address for people, without what may be a user and a password; a folder or an ssh address is none.
source=$(git remote get-url origin 2>/dev/null | sed --quiet --regexp-extended 's#^https://([^@/]*@)?(.*)#https://\2#; s#\.git$##; /^https:/p' || true)
if at_hand "$image"; then
    say "bringing $image up to date"
else
    say "building $image from $base: the first time this takes minutes, and fetches $FETCHED less what this machine has already"
fi
mkdir -p build
readonly log=build/image.log
if ! docker buildx build --progress plain --load --file images/slipway/Dockerfile --tag "$image" \
    --build-arg "VARIANT=$variant" --build-arg "LOCK=$LOCK" --build-arg "TORCH=$TORCH" --build-arg "PACKAGES=$PACKAGES" \
    --build-arg "GPUS=$GPUS" --build-arg "DRIVER=$DRIVER" --build-arg "CAPABILITY=$CAPABILITY" \
    --build-arg "BASE=$base" --build-arg "VERSION=$version" --build-arg "REVISION=$revision" --build-arg "CREATED=$created" \
    --build-arg "SOURCE=$source" --build-arg "DOCUMENTATION=${source:+$source#readme}" "${target[@]}" "${foreign[@]}" "${secrets[@]}" . 2>&1 |
    tee "$log" | show_steps; then
    say "the build failed; its end:"
    tail --lines=25 "$log" >&2
    say "all of what it said: $PWD/$log"
    exit 1
fi
say "$image: $(docker image inspect --format '{{.Size}}' "$image" | numfmt --to=si --format=%.2f)B"
