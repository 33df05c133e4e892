#!/bin/sh
# Builds llama.cpp and BigMoeOnEdge into DIR/bin: llama-completion, llama-quantize, llama-bench,
# llama-tokenize, bmoe-cli.
# Needs a C++ compiler, make, git, Python with venv, and about 2 GB of disk. Both share one build of llama.cpp:
# its own programs are taken from it before BigMoeOnEdge's hook is added.
#
# usage: benchmarks/peers/build.sh DIR
#        a clone of BigMoeOnEdge at DIR/BigMoeOnEdge is used as it is, else one is made
set -eu
dir=$(realpath -m "${1:?usage: build.sh DIR}")
here=$(cd "$(dirname "$0")" && pwd)
bmoe=$dir/BigMoeOnEdge
llama=$bmoe/third_party/llama.cpp
mkdir -p "$dir/bin"
cd "$dir"

[ -d venv ] || python3 -m venv venv
# The build tools are what unpacking llama-cpp-python's source asks for.
venv/bin/pip install -q cmake numpy gguf scikit-build-core flit_core pyproject_metadata pathspec
ls llama_cpp_python-0.3.36.tar.gz >/dev/null 2>&1 || venv/bin/pip download -q --no-deps --no-build-isolation \
    --no-binary llama-cpp-python llama-cpp-python==0.3.36
if [ ! -d "$bmoe" ]; then
    git clone -q https://github.com/Helldez/BigMoeOnEdge "$bmoe"
    git -C "$bmoe" checkout -q 2d4f2b11db128cbe32da738ce114c0479542f458
fi

if [ ! -f "$llama/CMakeLists.txt" ]; then
    mkdir -p "$llama"
    # Times of unpacking: make takes files from the future for changed ones.
    tar xzmf llama_cpp_python-0.3.36.tar.gz --strip-components=3 -C "$llama" \
        llama_cpp_python-0.3.36/vendor/llama.cpp
fi
configure() {
    venv/bin/cmake -S "$bmoe" -B build -G "Unix Makefiles" -DCMAKE_BUILD_TYPE=Release -DBUILD_SHARED_LIBS=OFF \
        -DGGML_NATIVE=ON -DLLAMA_BUILD_TOOLS=ON -DLLAMA_BUILD_APP=OFF -DLLAMA_OPENSSL=OFF -DBMOE_BUILD_TESTS=OFF \
        >configure.log 2>&1
}
if [ ! -x bin/llama-bench ] || [ ! -x bin/llama-tokenize ]; then
    configure
    nice make -C build -j"$(nproc)" llama-completion llama-quantize llama-bench llama-tokenize >make.log 2>&1
    find build -type f \( -name llama-completion -o -name llama-quantize -o -name llama-bench -o -name llama-tokenize \) \
        -exec cp {} bin/ \;
fi
venv/bin/python "$here/hook.py" "$bmoe"
configure
nice make -C build -j"$(nproc)" bmoe-cli >>make.log 2>&1
cp "$(find build -name bmoe-cli -type f)" bin/
ls bin
