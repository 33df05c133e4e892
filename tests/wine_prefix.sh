# shellcheck shell=bash
# Sourced with a directory, lets Wine run the program from a prefix in it, which is made once (0.7 GB). Needs mingw.
export WINEPREFIX=$1/prefix WINEDEBUG=-all WINEDLLOVERRIDES="mscoree,mshtml="
mkdir -p "$1"
[ -d "$WINEPREFIX" ] || wineboot -i >/dev/null 2>&1
# Wine 8 lacks the library that Rust takes random numbers from.
x86_64-w64-mingw32-gcc -O2 -shared -o "$WINEPREFIX/drive_c/windows/system32/bcryptprimitives.dll" -x c - -ladvapi32 <<'C'
#include <windows.h>
#include <ntsecapi.h>
__declspec(dllexport) BOOL WINAPI ProcessPrng(PBYTE p, SIZE_T n) { return RtlGenRandom(p, (ULONG)n); }
C
