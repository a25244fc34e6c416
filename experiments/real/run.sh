#!/bin/sh
# Every scorer on sets of questions about real text: is the evidence kept whole?
#
#     sh run.sh OUT [SET...]
#
# SET is a file of questions, such as needles.py makes, or `natural` for those that ship (the default; fetch their
# documents first: sp eval natural --fetch). Rows go to OUT/SET-GROUP.jsonl; a second run makes only what is missing.
# DRAFTER (a GGUF file or a known name), KEEP and OPTIONS (such as "--device cuda") come from the environment.
set -u
out=${1:?usage: sh run.sh OUT [SET...]}
shift
[ $# -gt 0 ] || set -- natural
drafter=${DRAFTER:-smollm2-135m}
keep=${KEEP:-0.2,0.1,0.05}
mkdir -p "$out" || exit 2
heads=$out/heads.json
[ -s "$heads" ] || sp heads "$drafter" -t 600 -n 5 -o "$heads" || exit 2
failed=0

run() { # SET GROUP SCORERS [--no-controls]
    name=$(basename "$1" .jsonl)
    source="--questions $1"
    [ "$1" = natural ] && source=
    # shellcheck disable=SC2086  # paths of questions without spaces; options are several words
    sp eval natural $source --drafter "$drafter" --scorer "$3" --keep-ratio "$keep" ${4-} ${OPTIONS-} \
        --out "$out/$name-$2.jsonl" || failed=1
}

# A group a run: what one scorer asks too much of ends its own group only.
for set; do
    run "$set" words bm25 # and the controls: random, lexical, head_tail, oracle
    run "$set" shipped auto,calibrated --no-controls
    run "$set" tail "tail,tail[queries=24],tail[queries=question],snapkv" --no-controls
    run "$set" others "anchored,mid_layer,embedding" --no-controls
    run "$set" heads "retrieval_heads[map=$heads queries=question]" --no-controls
done
exit $failed
