#!/bin/sh
# Trains a draft of tales-moe and says how good it is on texts that it has not seen: draft.sh DIR, from the
# root of the repository. DIR gets 1.1 GB of recordings, with SETS=6 twice as much. Ten minutes on two cores.
set -eu
dir=$1
model=shards/tales-moe
here=shards/tales-moe-training
sws=target/release/sws
mkdir -p "$dir"

# Texts of $2 tokens with the beginnings in the file $1, at the temperature $3; the nth has the seed $4 + $5 n.
record() {
    n=0
    while read -r beginning; do
        n=$((n + 1))
        "$sws" run "$model" --resident --prompt "$beginning" --seed $(($4 + $5 * n)) --temperature "$3" \
            --max-new-tokens "$2" --ignore-eos --record "$dir/$6_$n.safetensors" --record-hidden > "$dir/$6_$n.txt"
    done < "$1"
}

record $here/beginnings.txt 600 0.8 0 1 t_0
record $here/beginnings.txt 600 0.8 703 7 t_1
record $here/beginnings.txt 600 0.9 1403 7 t_2
if [ "${SETS:-3}" -gt 3 ]; then
    record $here/beginnings.txt 600 0.8 2103 7 t_3
    record $here/beginnings.txt 600 0.9 2803 7 t_4
    record $here/beginnings.txt 600 0.8 3503 7 t_5
fi
record $here/held-out.txt 400 0.8 9000 1 h
"$sws" draft train "$model" --traces "$dir"/t_*.safetensors --rank "${RANK:-16}" --epochs "${EPOCHS:-4}" \
    --size "${SIZE:-1MiB}" --out "$dir/draft.safetensors"
"$sws" draft score "$model" --traces "$dir"/h_*.safetensors --draft "$dir/draft.safetensors"
