#!/bin/sh
# Builds programs of llama.cpp into DIR/bin, from the source that llama-cpp-python has on PyPI, and installs ramvamp there
# from crates.io. Needs a C++ compiler, make, Python with venv, and about 2 GB of disk; ramvamp needs cargo instead.
#
# usage: benchmarks/peers/build.sh DIR [PROGRAM...]
#        without PROGRAM: llama-completion, llama-quantize, llama-bench and llama-tokenize. llama-server, ramvamp and
#        ramvamp-repack are made if they are named. `source` unpacks llama.cpp and builds nothing, `xllamacpp` installs a
#        later llama.cpp in DIR/venv. JOBS compile at a time (default: one for each core).
set -eu
dir=$(realpath -m "${1:?usage: build.sh DIR [PROGRAM...]}")
shift
[ $# -gt 0 ] || set -- llama-completion llama-quantize llama-bench llama-tokenize
jobs=${JOBS:-$(nproc)}
version=0.3.36
mkdir -p "$dir/bin"
cd "$dir"

# Downloads llama.cpp, once.
unpack() {
    [ ! -f llama.cpp/CMakeLists.txt ] || return 0
    [ -d venv ] || python3 -m venv venv
    # The build tools are what unpacking llama-cpp-python's source asks for.
    venv/bin/pip install -q cmake numpy gguf scikit-build-core flit_core pyproject_metadata pathspec
    [ -f "llama_cpp_python-$version.tar.gz" ] || venv/bin/pip download -q --no-deps --no-build-isolation \
        --no-binary llama-cpp-python "llama-cpp-python==$version"
    mkdir -p llama.cpp
    # Times of unpacking: make takes files from the future for changed ones.
    tar xzmf "llama_cpp_python-$version.tar.gz" --strip-components=3 -C llama.cpp \
        "llama_cpp_python-$version/vendor/llama.cpp"
}
configure() {
    unpack
    [ ! -f build/Makefile ] || return 0
    venv/bin/cmake -S llama.cpp -B build -G "Unix Makefiles" -DCMAKE_BUILD_TYPE=Release -DBUILD_SHARED_LIBS=OFF \
        -DGGML_NATIVE=ON -DLLAMA_BUILD_TOOLS=ON -DLLAMA_BUILD_APP=OFF -DLLAMA_BUILD_EXAMPLES=OFF \
        -DLLAMA_BUILD_TESTS=OFF -DLLAMA_USE_PREBUILT_UI=OFF -DLLAMA_OPENSSL=OFF >configure.log 2>&1
}
for program; do
    [ ! -x "bin/$program" ] || continue
    case $program in
    source)
        unpack
        continue
        ;;
    xllamacpp)
        [ -d venv ] || python3 -m venv venv
        venv/bin/pip install -q xllamacpp==2026.10.11549
        continue
        ;;
    ramvamp | ramvamp-repack)
        # They share what both depend on.
        CARGO_TARGET_DIR=target nice cargo install -q --locked -j "$jobs" --root . "$program@0.1.1"
        continue
        ;;
    esac
    configure
    nice make -C build -j"$jobs" "$program" >>make.log 2>&1
    find build -type f -name "$program" -exec cp {} bin/ \;
done
ls bin
