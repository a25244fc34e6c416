#!/bin/sh
# Parts 16 and 17 on a machine with an H200: sh next_part.sh STEP [DATA OUT], a step a call, each within 10 minutes.
#
#   data          10 s    bank and vocabulary
#   kernels       60 s    which attention kernel each stage takes, and how much quicker it is; fit.py asks again by
#                         itself, unless FLASH=--flash
#   drafter       410 s   drafter-11, its file, and the mean with the embedded one
#   target        520 s   target-11 likewise
#   both          520 s   drafter and target side by side, on two cards of one machine with 32 cores
#   read          240 s   held-out phrases at 8K before and after, all six files; 32K of the three targets
#   discriminates 180 s   sp eval discriminates at 8K; CHOSEN=new or CHOSEN=mean says which pair (default: mean)
#   long          360 s   the same at 32K
set -eu
cd "$(dirname "$0")"
export PYTHONPATH=../needle_pair:.:../.. PYTHONUNBUFFERED=1
STEP=$1 DATA=${2:-/tmp/instrument} OUT=${3:-/tmp/part} A=../../sp/assets PYTHON=${PYTHON:-python3}
CHOSEN=${CHOSEN:-mean} FLASH=${FLASH:-}
TASKS=nolima,updates,multi_session,code,json
mkdir -p "$OUT/new" "$OUT/mean"

train() { # role, seconds after which the training ends itself, seconds after which it is ended
    timeout "$3" "$PYTHON" fit.py "configs/$1-11.yaml" "$DATA" "$OUT/new" --init "$A/$1.gguf" \
        --workers 15 --limit "$2" $FLASH
    "$PYTHON" files.py "$DATA" "$OUT/new" "$OUT/new" --role "$1"
    "$PYTHON" mean.py "$1" "$OUT/mean/$1.safetensors" "$OUT/new/$1.safetensors" "$A/$1.gguf"
    "$PYTHON" files.py "$DATA" "$OUT/mean" "$OUT/mean" --role "$1"
}

told() { # role, tokens, examples: of the embedded file, the new one and the mean
    for file in "$A" "$OUT/new" "$OUT/mean"; do
        timeout 150 "$PYTHON" held_out.py "$file/$1.gguf" "$1 of $(basename "$file")" "$OUT/held_out.jsonl" \
            --tasks "$TASKS" --tokens "$2" -n "$3"
    done
}

case $STEP in
data) "$PYTHON" ../needle_pair/bank.py "$DATA" && cp start/vocabulary.json "$DATA" ;;
kernels) timeout 180 "$PYTHON" attention.py configs/drafter-11.yaml configs/target-11.yaml ;;
drafter) train drafter 440 490 ;;
target) train target 540 585 ;;
both)
    CUDA_VISIBLE_DEVICES=1 train drafter 440 490 > "$OUT/drafter.txt" 2>&1 &
    CUDA_VISIBLE_DEVICES=0 train target 540 585 > "$OUT/target.txt" 2>&1 || { tail "$OUT/target.txt" && exit 1; }
    wait $! || { tail "$OUT/drafter.txt" && exit 1; } ;;
read) told target 8192 50 && told drafter 8192 50 && told target 32768 30 ;;
discriminates) timeout 400 "$PYTHON" -m sp eval discriminates --target "$OUT/$CHOSEN/target.gguf" \
    --drafter "$OUT/$CHOSEN/drafter.gguf" -p 8k -n 100 --out "$OUT/discriminates-8k.jsonl" ;;
long) timeout 590 "$PYTHON" -m sp eval discriminates --target "$OUT/$CHOSEN/target.gguf" \
    --drafter "$OUT/$CHOSEN/drafter.gguf" -p 32k -n 100 --out "$OUT/discriminates-32k.jsonl" ;;
*) echo "no step '$STEP'" >&2 && exit 2 ;;
esac
