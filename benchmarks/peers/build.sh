#!/bin/sh
# Builds llama.cpp and BigMoeOnEdge into DIR/bin: llama-completion, llama-quantize, llama-bench,
# llama-tokenize, bmoe-cli.
# Needs a C++ compiler, make, git, Python with venv, and about 2 GB of disk. Both share one build of llama.cpp:
# its own programs are taken from it before BigMoeOnEdge's hook is added.
#
# usage: benchmarks/peers/build.sh DIR [llama-server]
#        a clone of BigMoeOnEdge at DIR/BigMoeOnEdge is used as it is, else one is made; with a second
#        argument that program of llama.cpp is built alone, without BigMoeOnEdge, by JOBS jobs at a time
set -eu
dir=$(realpath -m "${1:?usage: build.sh DIR [PROGRAM]}")
only=${2:-}
here=$(cd "$(dirname "$0")" && pwd)
bmoe=$dir/BigMoeOnEdge
llama=$bmoe/third_party/llama.cpp
[ -z "$only" ] || llama=$dir/llama.cpp
mkdir -p "$dir/bin"
cd "$dir"

[ -d venv ] || python3 -m venv venv
# The build tools are what unpacking llama-cpp-python's source asks for.
venv/bin/pip install -q cmake numpy gguf scikit-build-core flit_core pyproject_metadata pathspec
ls llama_cpp_python-0.3.36.tar.gz >/dev/null 2>&1 || venv/bin/pip download -q --no-deps --no-build-isolation \
    --no-binary llama-cpp-python llama-cpp-python==0.3.36
if [ -z "$only" ] && [ ! -d "$bmoe" ]; then
    git clone -q https://github.com/Helldez/BigMoeOnEdge "$bmoe"
    git -C "$bmoe" checkout -q 2d4f2b11db128cbe32da738ce114c0479542f458
fi

if [ ! -f "$llama/CMakeLists.txt" ]; then
    mkdir -p "$llama"
    # Times of unpacking: make takes files from the future for changed ones.
    tar xzmf llama_cpp_python-0.3.36.tar.gz --strip-components=3 -C "$llama" \
        llama_cpp_python-0.3.36/vendor/llama.cpp
fi
jobs=${JOBS:-$(nproc)}
configure() {
    venv/bin/cmake -S "$1" -B "$2" -G "Unix Makefiles" -DCMAKE_BUILD_TYPE=Release -DBUILD_SHARED_LIBS=OFF \
        -DGGML_NATIVE=ON -DLLAMA_BUILD_TOOLS=ON -DLLAMA_BUILD_APP=OFF -DLLAMA_BUILD_EXAMPLES=OFF \
        -DLLAMA_BUILD_TESTS=OFF -DLLAMA_USE_PREBUILT_UI=OFF -DLLAMA_OPENSSL=OFF -DBMOE_BUILD_TESTS=OFF \
        >configure.log 2>&1
}
# build DIR PROGRAM...: those of them that are not there yet
build() {
    from=$1
    shift
    for program; do
        [ ! -x "bin/$program" ] || continue
        nice make -C "$from" -j"$jobs" "$program" >>make.log 2>&1
        find "$from" -type f -name "$program" -exec cp {} bin/ \;
    done
}
if [ -n "$only" ]; then
    configure "$llama" build-llama
    build build-llama "$only"
    exit
fi
configure "$bmoe" build
build build llama-completion llama-quantize llama-bench llama-tokenize
venv/bin/python "$here/hook.py" "$bmoe"
configure "$bmoe" build
build build bmoe-cli
ls bin
