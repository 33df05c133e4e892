# Names for common commands. Each runs what a recipe says, with nothing in between.

# Lists the recipes
default:
    @just --list

# Runs the tests; words filter them by name
test *args:
    cargo test --locked --release --workspace {{args}}

# Checks one crate in a few minutes: format, words, layering, lints and its own tests
check crate *args:
    cargo fmt --all --check
    .ci/prose && .ci/words && .ci/layering
    cargo clippy --locked --release -p {{crate}} --all-targets -- -D warnings
    cargo test --locked --release -p {{crate}} {{args}}

# Runs what must hold before a change lands, or only the named parts: lint, variants, test, gates
ci *parts:
    .ci/run {{parts}}

# Formats the code
fmt:
    cargo fmt --all

# Lints all targets
clippy:
    cargo clippy --locked --release --workspace --all-targets -- -D warnings

# Builds the documentation and opens it
doc:
    cargo doc --locked --release --workspace --no-deps --open

# Runs the gates: --full, --gate N, --only WORDS
gates *args:
    cargo run --locked --release -p sws-gates -- {{args}}

# Runs the long checks, or only the named ones; --list shows them
night *args:
    .ci/night {{args}}

# Runs a benchmark: kernels, resident MODEL, stream MODEL, versions OLD NEW --scratch DIR, ..
bench *args:
    cargo run --locked --release -p sws-benchmarks --bin sws-bench -- {{args}}
