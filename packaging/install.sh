#!/bin/sh
# Installs `sws` from a release: picks the archive for this system, verifies its SHA-256, and unpacks it.
#
#   curl -fsSL ADDRESS/install.sh | sh
#   curl -fsSL ADDRESS/install.sh | sh -s -- --prefix /usr/local
#
# --prefix DIR    directory that gets bin/sws and share/ (default ~/.local)
# --address URL   where the archives and SHA256SUMS lie (default: where this script was released)
# --target NAME   archive to install, as rustc names its system (default: that of this system)
#
# Either all files are installed, or none is changed. `packaging/installer` fills in the next two lines.
address=''
glibc='' # the oldest version that the archives for glibc run with

set -u
LC_ALL=C
export LC_ALL
umask 022

prefix=${HOME:+$HOME/.local}
target=''
stage=''   # a directory of this run, in the prefix
made=''    # directories that were made, the newest first, each with a line
child=''   # the download in progress
changed='' # set while installed files are being replaced
source="build it from source, with \`cargo install --locked --path crates/cli\` in a copy of the repository"
newline='
'

fail() { # SENTENCE
  echo "install: $1" >&2
  exit 2
}

# The first line of a message, without the tool's name, in parentheses.
reason() {
  sed -n '/./ { s/^[^:]*: *\(.*\)/ (\1)/p; q; }' "$stage/log" 2>/dev/null
}

cleanup() {
  trap '' HUP INT TERM
  trap - EXIT
  if [ -n "$child" ]; then kill "$child" && wait "$child"; fi 2>/dev/null
  [ -z "$changed" ] || restore
  [ -z "$stage" ] || rm -rf "$stage"
  echo "$made" | while IFS= read -r dir; do
    [ -z "$dir" ] || rmdir "$dir" 2>/dev/null
  done
}

# Makes a directory and those above it.
make() { # DIRECTORY
  [ ! -d "$1" ] || return 0
  make "$(dirname "$1")" || return 1
  cause=$(mkdir "$1" 2>&1) || return 1
  made=$1$newline$made
}

# True if a version is at least another, both MAJOR.MINOR.
at_least() { # VERSION NEEDED
  minor=${1#*.}
  needed=${2#*.}
  [ "${1%%.*}" -gt "${2%%.*}" ] || { [ "${1%%.*}" -eq "${2%%.*}" ] && [ "${minor%%.*}" -ge "${needed%%.*}" ]; }
} 2>/dev/null

# True if the archives for glibc run with this system's C library.
has_glibc() {
  found=$(getconf GNU_LIBC_VERSION 2>/dev/null) || return 1
  [ -n "$glibc" ] && at_least "${found#glibc }" "$glibc"
}

choose() {
  system=$(uname -s)
  machine=$(uname -m)
  case $system-$machine in
    Linux-x86_64 | Linux-amd64)
      target=x86_64-unknown-linux-musl
      # Some systems have glibc, and no loader where programs of others look for it.
      if has_glibc && [ -e /lib64/ld-linux-x86-64.so.2 ]; then target=x86_64-unknown-linux-gnu; fi
      ;;
    Linux-aarch64 | Linux-arm64)
      has_glibc || fail "the archive for $machine needs glibc ${glibc:-of the system that built it} or newer, which this system lacks: $source"
      target=aarch64-unknown-linux-gnu
      ;;
    Darwin-arm64 | Darwin-aarch64) target=aarch64-apple-darwin ;;
    Darwin-*) fail "no archive is for macOS on $machine: $source" ;;
    MINGW*-* | MSYS*-* | CYGWIN*-*)
      fail "Windows has a zip file and manifests for Scoop and winget at $address, and not this script"
      ;;
    *) fail "no archive is for $system on $machine: $source" ;;
  esac
}

# Ends the script after something could not be written or fetched; an exhausted disk is named as the cause.
fail_writing() { # SENTENCE
  free=$(df -Pk "$stage" 2>/dev/null | awk 'NR == 2 { print $4 }')
  [ "${free:-9999}" -ge 1024 ] || fail "no space is left in $prefix: free some, or choose another directory with --prefix"
  fail "$1$(reason)"
}

# A download that a signal interrupts.
download() { # NAME
  url=$address/$1
  case $downloader in
    curl) set -- curl -fsSL --proto-redir =https --connect-timeout 30 --speed-limit 1 --speed-time 60 -o "$stage/$1" "$url" ;;
    # Busybox's does not try again, and its time limit (-T) ends in a fault (1.35).
    wget) set -- wget -q -O "$stage/$1" "$url" ;;
    *) set -- wget -t 2 -q -T 60 -O "$stage/$1" "$url" ;;
  esac
  "$@" 2>"$stage/log" &
  child=$!
  wait "$child"
  code=$?
  child=''
  [ "$code" = 0 ] || fail_writing "$url cannot be downloaded: try again, or see whether the address is right"
}

sha256() { # FILE
  if command -v sha256sum >/dev/null; then sha256sum "$1"; else shasum -a 256 "$1"; fi | cut -d ' ' -f 1
}

# Puts the earlier files back.
restore() {
  while IFS= read -r file; do
    if [ -e "$stage/old/$file" ] || [ -L "$stage/old/$file" ]; then
      mv -f "$stage/old/$file" "$prefix/$file"
    else
      rm -f "$prefix/$file"
    fi
  done <"$stage/placed"
}

# Moves each file of $tree to its place, and keeps the file that it replaces.
place() {
  while IFS= read -r file; do
    old=$prefix/$file
    make "$(dirname "$old")" || return 1
    if [ -d "$old" ]; then
      cause="$old is a directory"
      return 1
    fi
    if [ -e "$old" ] || [ -L "$old" ]; then
      mkdir -p "$(dirname "$stage/old/$file")"
      cause=$(ln "$old" "$stage/old/$file" 2>&1 || cp -pP "$old" "$stage/old/$file" 2>&1) || return 1
    fi
    echo "$file" >>"$stage/placed" || return 1
    cause=$(mv -f "$tree/$file" "$old" 2>&1) || return 1
  done <"$stage/files"
}

main() {
  while [ $# -gt 0 ]; do
    case $1 in
      --prefix | --address | --target)
        [ -n "${2:-}" ] || fail "$1 needs a value"
        case $1 in
          --prefix) prefix=$2 ;;
          --address) address=$2 ;;
          --target) target=$2 ;;
        esac
        shift 2
        ;;
      -h | --help)
        echo "usage: install.sh [--prefix DIR] [--address URL] [--target NAME]"
        exit
        ;;
      *) fail "no option \`$1\`: --prefix DIR, --address URL, --target NAME" ;;
    esac
  done
  [ -n "$address" ] || fail "no release is known: name the directory of its archives with --address URL"
  [ -n "$prefix" ] || fail "HOME is not set: name a directory with --prefix DIR"
  case $prefix in /*) ;; *) prefix=$PWD/$prefix ;; esac
  address=${address%/}
  [ -n "$target" ] || choose
  for tool in tar gzip awk mktemp; do
    command -v "$tool" >/dev/null || fail "this needs \`$tool\`, which is not installed"
  done
  command -v sha256sum >/dev/null || command -v shasum >/dev/null ||
    fail "this needs \`sha256sum\` or \`shasum\`, to verify the archive"
  if command -v curl >/dev/null; then
    downloader=curl
  elif command -v wget >/dev/null; then
    downloader=wget
    if wget --version 2>/dev/null | grep -q GNU; then downloader="GNU's wget"; fi
  else
    fail "this needs \`curl\` or \`wget\`, and neither is installed"
  fi

  trap cleanup EXIT
  trap 'exit 129' HUP
  trap 'exit 130' INT
  trap 'exit 143' TERM
  make "$prefix" || fail "$prefix cannot be made (${cause##*: }): choose another directory with --prefix"
  # Beside the files to come, so that these are renamed, which is all or nothing.
  stage=$(mktemp -d "$prefix/.sws-install.XXXXXX" 2>/dev/null) || {
    stage=''
    fail "$prefix cannot be written: choose another directory with --prefix, or become its owner"
  }

  download SHA256SUMS
  # Names are preceded by a space, or by a star for binary files, and perhaps by ./
  awk -v target="$target" '
    { name = $2; sub(/^\*/, "", name); sub(/^\.\//, "", name) }
    length($1) == 64 && name ~ /^sws-[0-9A-Za-z._+-]*\.tar\.gz$/ && index(name, "-" target ".tar.gz") { print $1, name }
  ' "$stage/SHA256SUMS" >"$stage/found"
  case $(awk 'END { print NR }' "$stage/found") in
    0) fail "the release at $address has no archive for $target: $source" ;;
    1) read -r hash archive <"$stage/found" ;;
    *) fail "$address/SHA256SUMS names several archives for $target" ;;
  esac
  echo "Downloading $address/$archive"
  download "$archive"
  [ "$(sha256 "$stage/$archive")" = "$hash" ] ||
    fail "$address/$archive does not have the SHA-256 of SHA256SUMS: it was cut or changed on its way, so try again"

  if ! { mkdir "$stage/unpacked" && tar -xzf "$stage/$archive" -C "$stage/unpacked"; } 2>"$stage/log"; then
    fail_writing "$archive cannot be unpacked"
  fi
  rm "$stage/$archive"
  tree=$stage/unpacked/${archive%.tar.gz}
  if [ ! -f "$tree/bin/sws" ] || [ -n "$(find "$stage/unpacked" ! -type f ! -type d)" ]; then
    fail "$archive is not an archive of sws"
  fi
  version=$("$tree/bin/sws" --version 2>"$stage/log" </dev/null) ||
    fail "the program for $target does not run on this system$(reason): $source"

  # The list of files, for removal; the program is the last to be replaced.
  list=share/sws/installed
  if ! {
    (cd "$tree" && find . -type f ! -path ./bin/sws ! -path "./$list") | sed 's|^\./||' | sort >"$stage/files" &&
      printf '%s\n' "$list" bin/sws >>"$stage/files" &&
      mkdir -p "$tree/share/sws" && cp "$stage/files" "$tree/$list" && : >"$stage/placed"
  } 2>"$stage/log"; then
    fail_writing "the list of files cannot be written"
  fi
  if [ -f "$prefix/$list" ]; then grep -vxFf "$stage/files" "$prefix/$list" >"$stage/gone"; fi
  cause='it cannot be written'
  changed=yes
  place 2>/dev/null || fail "$prefix cannot be changed, and is as it was (${cause##*"$newline"}): choose another directory with --prefix"
  changed=''
  made=''
  # Files that the earlier version had.
  if [ -f "$stage/gone" ]; then
    while IFS= read -r file; do
      case /$file/ in */../*) ;; *) rm -f "$prefix/$file" ;; esac
    done <"$stage/gone"
  fi

  echo "Installed ${version%%"$newline"*} as $prefix/bin/sws"
  case :$PATH: in
    *":$prefix/bin:"*) ;;
    *) echo "$prefix/bin is not on PATH: add it with  export PATH=\"$prefix/bin:\$PATH\"" ;;
  esac
  echo "Remove it with  cd \"$prefix\" && xargs rm -f <$list"
}

# At the end, so that nothing happens where the script was cut on its way.
main "$@"
