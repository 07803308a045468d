#!/bin/sh
# The main job on a real model: 92 MiB of weights answer inside a simulated card's budget of 24 MiB.
set -eu
lowtide=$1
model=$(LT_COMMAND=$lowtide tools/fetch-model.sh smollm2)
set -x
"$lowtide" run "$model" --chat -p "What is the capital of France? Answer in one sentence." -n 64 --temp 0 \
    --device sim:vram=64M,h2d=12G,latency=10us --vram 24M --ctx 256
