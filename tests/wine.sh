#!/usr/bin/env bash
# The program for Windows under Wine, beside the one for this machine: each computes the certificates of the
# other, at three budgets, and every bit has to agree. Where this user may make control groups (version 1),
# one holds each run to its budget, and kills it above.
#
#   tests/wine.sh SWS [SWS.EXE]      SWS is the program for this machine
#   tests/wine.sh --missing          what this needs and this machine lacks; nothing if it can run
#
# SCRATCH  directory for Wine's prefix (0.7 GB) and outputs (default target/night)
# WINDOWS  target directory of the build for Windows (default target)
set -euo pipefail
cd "$(dirname "$0")/.."
target=x86_64-pc-windows-gnu

missing() {
  command -v wine >/dev/null || { echo "no wine (Debian: wine64)"; return; }
  command -v x86_64-w64-mingw32-gcc >/dev/null || { echo "no mingw (Debian: gcc-mingw-w64-x86-64)"; return; }
  command -v curl >/dev/null && command -v python3 >/dev/null || { echo "no curl or no python3"; return; }
  compgen -G "$(rustc --print target-libdir --target $target)/libstd-*.rlib" >/dev/null ||
    echo "no standard library for $target (rustup target add $target)"
}
if [ "${1:-}" = --missing ]; then
  missing
  exit
fi
lack=$(missing)
[ -z "$lack" ] || { echo "wine: skipped: $lack"; exit; }

native=$(realpath "${1:?usage: tests/wine.sh SWS [SWS.EXE]}")
scratch=$(realpath -m "${SCRATCH:-target/night}")/wine
windows=$(realpath -m "${WINDOWS:-target}")
exe=${2:-}
if [ -z "$exe" ]; then
  CARGO_TARGET_DIR=$windows cargo build --locked --release --target $target -p sws-cli
  exe=$windows/$target/release/sws.exe
fi

mkdir -p "$scratch/bin" "$scratch/home"
# With sections at whole pages Wine maps the program, as Windows does, and else copies it into memory.
x86_64-w64-mingw32-objcopy --strip-all --file-alignment 4096 "$exe" "$scratch/bin/sws.exe"
. tests/wine_prefix.sh "$scratch"

echo "== tests of sws-os: reads that are begun without waiting, pages, locks, identity"
CARGO_TARGET_DIR=$windows CARGO_TARGET_X86_64_PC_WINDOWS_GNU_RUNNER=wine \
  cargo test --locked --release --target $target -p sws-os --lib

# Nothing of the user's.
export HOME=$scratch/home XDG_CACHE_HOME='' XDG_CONFIG_HOME='' XDG_DATA_HOME='' SWS_CONFIG=''
dir=$(mktemp -d)
# A program that waits for input keeps Wine's own processes, which so stay outside of the group below.
mkfifo "$dir/input"
wine cmd <"$dir/input" >/dev/null 2>&1 &
exec 9>"$dir/input"
wine "$scratch/bin/sws.exe" --version >/dev/null

group=/sys/fs/cgroup/memory/sws-wine-$$
finish() {
  exec 9>&-
  [ -z "${server:-}" ] || kill "$server" 2>/dev/null || true
  rmdir "$group" 2>/dev/null || true
  rm -rf "$dir"
}
trap finish EXIT
fail() { echo "wine: $*" >&2; exit 1; }

win() { wine "$scratch/bin/sws.exe" "$@"; }
# Lines end as on Windows in nothing that the program writes.
same() { cmp "$1" "$2" || fail "$3"; }
model=shards/tales-moe
tell=(run "$model" --prompt "The wolf" --seed 7 -n 60)

# hold MIB PROGRAM..: runs a program in the group, with this limit.
hold() {
  local limit=$(($1 << 20))
  shift
  echo 0 >"$group/memory.force_empty" 2>/dev/null || true
  echo -1 >"$group/memory.limit_in_bytes"
  echo "$limit" >"$group/memory.limit_in_bytes"
  sh -c 'echo $$ >"$0/cgroup.procs" && exec "$@"' "$group" "$@"
}
# Memory that Wine takes in the process: the least limit that a command which does nothing survives.
besides=
if mkdir "$group" 2>/dev/null; then
  for mib in 4 6 8 12 16 24 32 48 64 96 128; do
    if hold $mib wine "$scratch/bin/sws.exe" --version >/dev/null 2>&1; then
      besides=$mib
      break
    fi
  done
fi
case $besides in
  '') echo "wine: no control groups here, so nothing holds a run to its budget" ;;
  *) echo "wine: a control group kills a run above its budget and $besides MiB for Wine itself" ;;
esac
# within MIB ARGUMENT..: runs the program, held to a budget where that is possible.
within() {
  local mib=$1
  shift
  case $besides in
    '') win "$@" ;;
    *) hold $((mib + besides)) wine "$scratch/bin/sws.exe" "$@" ;;
  esac
}

echo "== version, doctor, verify, inspect, list, plan"
win --version
win doctor "$model" >"$dir/doctor" || [ $? = 1 ] || fail "doctor"
grep -q '^bits  *ok' "$dir/doctor" || fail "its kernels have other bits"
win verify "$model"
win inspect "$model" >"$dir/theirs"
"$native" inspect "$model" >"$dir/ours"
same "$dir/ours" "$dir/theirs" "another description"
win list >"$dir/theirs"
win plan "$model" --ram 96MiB | tee "$dir/plan"
grep -q 'runs.* within 96.00 MiB' "$dir/plan" || fail "plan"

least=$(win plan "$model" --ram min | grep -oE 'within [0-9]+' | grep -oE '[0-9]+')
# Wine does not tell what is committed, so the working set counts: budgets are larger than those of Linux.
for ram in 1GiB 80MiB min; do
  echo "== certificates at $ram"
  case $ram in 1GiB) mib=1024 ;; 80MiB) mib=80 ;; *) mib=$((least + 2)) ;; esac
  "$native" "${tell[@]}" --ram "$ram" --certify "$dir/ours" >"$dir/text" 2>/dev/null
  within "$mib" "${tell[@]}" --ram "$ram" --certify "$dir/theirs" >"$dir/text.exe" 2>"$dir/log" ||
    { cat "$dir/log" >&2; fail "a run at $ram"; }
  same "$dir/text" "$dir/text.exe" "another text"
  same "$dir/ours" "$dir/theirs" "other bits"
  within "$mib" certify "$dir/ours" "$model" --ram "$ram"
  "$native" certify "$dir/theirs" "$model" --ram "$ram"
done

echo "== shard"
win unshard "$model" --out "$dir/checkpoint" >/dev/null 2>&1
win shard "$dir/checkpoint" --out "$dir/shards" --encoding bf12 >/dev/null 2>&1
"$native" shard "$dir/checkpoint" --out "$dir/again" --encoding bf12 >/dev/null 2>&1
diff -r "$dir/shards" "$dir/again" || fail "other shards"

echo "== chat, with a checkpoint in place"
cp -r "$dir/checkpoint" "$dir/chatty"
echo '{% for m in messages %}{{ m.role[0] }} {{ m.content }}{% endfor %}a ' >"$dir/chatty/chat_template.jinja"
talk=(chat "$dir/chatty" --temperature 0 -n 6 --ignore-eos)
printf 'hello\nagain\n' | win "${talk[@]}" >"$dir/chat.exe" 2>"$dir/log" || { cat "$dir/log" >&2; fail "chat"; }
printf 'hello\nagain\n' | "$native" "${talk[@]}" >"$dir/chat" 2>/dev/null
same "$dir/chat" "$dir/chat.exe" "another answer"

echo "== serve"
port=$((20000 + $$ % 20000))
# The text that a server answers with, in a file.
answered() { # FILE PROGRAM..
  local file=$1
  shift
  "$@" serve "$model" --ram 192MiB --port $port >"$dir/log" 2>&1 &
  server=$!
  for _ in $(seq 100); do
    curl -sf "http://127.0.0.1:$port/health" >/dev/null && break
    kill -0 $server 2>/dev/null || { cat "$dir/log" >&2; fail "the server ended"; }
    sleep 0.2
  done
  curl -sf "http://127.0.0.1:$port/v1/completions" -H 'content-type: application/json' \
    -d '{"prompt":"The wolf","seed":7,"max_tokens":20}' >"$dir/answer" || { cat "$dir/log" >&2; fail "no answer"; }
  kill $server
  wait $server || true
  port=$((port + 1))
  python3 -c 'import json, sys; print(repr(json.load(open(sys.argv[1]))["choices"][0]["text"]))' "$dir/answer" | tee "$file"
}
answered "$dir/text" "$native"
answered "$dir/text.exe" wine "$scratch/bin/sws.exe"
same "$dir/text" "$dir/text.exe" "another answer of the server"

echo "== refusals"
refused() {
  local code=0
  win "$@" >/dev/null 2>"$dir/log" || code=$?
  [ "$code" = 2 ] || { cat "$dir/log" >&2; fail "$* ended with $code"; }
  [ "$(wc -l <"$dir/log")" = 1 ] || { cat "$dir/log" >&2; fail "$* is not refused in a sentence"; }
  cat "$dir/log"
}
refused run no/such/model --prompt x
refused run "$model" --prompt x --ram 1MiB
refused run "$model" --prompt x --certify NUL
refused run "$model" --prompt-file NUL
echo "wine: ok"
