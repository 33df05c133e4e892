//! Models to begin with, and plans for the machines on which others have measured.

use std::fmt::Write as _;

use anyhow::{Context, Result};
use sws::{Footprint, SUGGESTIONS, Size};
use sws_kernels::Encoding;

use super::{Entry, SPEEDS, two_digits};

/// Bytes per second that a laptop reads from disk and from memory, where nothing else is known.
const LAPTOP: [f64; 2] = [3e9, 3e10];

/// Bytes of q4 per second that six cores with AVX2 compute with: 3.1 GB/s a core in the run on Zen 3 of
/// docs/benchmarks/peers.md, times the 1.39 that definition 2 gained since.
const SIX_CORES: f64 = 6.0 * 3.1e9 * 1.39;

pub(super) const BEGINNING: &str = "
## Models to begin with

They answer questions, and `sws pull` lists them. Plans take three quarters of the memory. The first speed is that of
the machine of [models](#models), the second of a laptop with AVX2: 3 GB/s from disk, 30 from memory, and six cores that
compute q4 at 26 (4.3 each, from [two Zen 3 cores](benchmarks/peers.md#a-file-of-real-size)).

";

pub(super) const BESIDE: &str = "
## Beside measurements of others

Speeds of released models that other programs for CPU and SSD publish, as read on 28 November 2026: single runs of their
authors, on their machines. Beside them are plans of `sws` for the memory and the disk that they name. Where no disk is
named it is that of the laptop above; laptops are taken to read memory at 30 GB/s, desktops at 50. A limit of 64 GB is
that of the machine, and planned with 56. Their files differ from these: those in Q4 are a fifth larger, FP8 of
Flash-Next has 172.8 GiB.

";

/// A speed that the author of another program has published, and what it is compared with.
struct PeerSpeed {
    by: &'static str,
    speed: &'static str,
    machine: &'static str,
    model: &'static str,
    plain: Encoding,
    /// Budget of the plan.
    ram: u64,
    /// Bytes per second from disk and of computing.
    speeds: [f64; 2],
}

const GIB: u64 = 1 << 30;

/// Single runs of the authors, from their documents.
const PUBLISHED: [PeerSpeed; 8] = [
    PeerSpeed {
        by: "moe-stream 0.1.0, 13 October",
        speed: "6.4",
        machine: "Ryzen 5 7430U, 8 GB",
        model: "Qwen/Qwen3.6-35B-A3B",
        plain: Encoding::Q4,
        ram: 8_000_000_000,
        speeds: [LAPTOP[0], SIX_CORES],
    },
    PeerSpeed {
        by: "moe-stream 0.1.0, 13 October",
        speed: "9.3",
        machine: "the same",
        model: "google/gemma-4-26B-A4B-it",
        plain: Encoding::Q4,
        ram: 8_000_000_000,
        speeds: [LAPTOP[0], SIX_CORES],
    },
    PeerSpeed {
        by: "BigMoeOnEdge 0.40.3, 8 November",
        speed: "4.8 to 5.6",
        machine: "laptop of 16 GB, cache of 5.3 to 7.1 GiB, 3 GB/s",
        model: "Qwen/Qwen3.6-35B-A3B",
        plain: Encoding::Q4,
        ram: 8 * GIB,
        speeds: [3e9, SIX_CORES],
    },
    PeerSpeed {
        by: "ramvamp 0.1.1",
        speed: "2.8; 1.96 at context 3,961",
        machine: "Core Ultra 9 185H, 4 GiB, 1.6 GB/s",
        model: "Qwen/Qwen3-30B-A3B",
        plain: Encoding::Q4,
        ram: 4 * GIB,
        speeds: [1.6e9, LAPTOP[1]],
    },
    PeerSpeed {
        by: "colibri 2.2, 22 November",
        speed: "1.09, FP8",
        machine: "i9-14900K, 16.6 GiB, 2.4 GB/s",
        model: "Qwen/Qwen3.8-Flash-Next",
        plain: Encoding::Bf12,
        ram: 16 * GIB + 6 * GIB / 10,
        speeds: [2.4e9, SPEEDS[1]],
    },
    PeerSpeed {
        by: "colibri 2.2, 22 November",
        speed: "the same",
        machine: "the same",
        model: "Qwen/Qwen3.8-Flash-Next",
        plain: Encoding::Q4,
        ram: 16 * GIB + 6 * GIB / 10,
        speeds: [2.4e9, SPEEDS[1]],
    },
    PeerSpeed {
        by: "colibri 2.2, 22 November",
        speed: "0.93",
        machine: "Ryzen 7 5800X, 22 GB, 2.5 GB/s",
        model: "deepseek-ai/DeepSeek-V4-Flash",
        plain: Encoding::Bf12,
        ram: 22_000_000_000,
        speeds: [2.5e9, SPEEDS[1]],
    },
    PeerSpeed {
        by: "colibri 2.2, 22 November",
        speed: "0.34",
        machine: "i9-12900K, 64 GB, 6.4 GB/s",
        model: "zai-org/GLM-5.2",
        plain: Encoding::Q4,
        ram: 56_000_000_000,
        speeds: [6.4e9, SPEEDS[1]],
    },
];

/// Planned speed, as it is shown.
fn pace(footprint: &Footprint, ram: u64, [disk, memory]: [f64; 2]) -> String {
    let plan = footprint.plan(ram);
    plan.map_or("–".to_owned(), |plan| two_digits(plan.per_token.pace(disk, memory)))
}

pub(super) fn suggestions(entries: &[Entry]) -> Result<String> {
    let mut table = "\
| memory | command | disk | smallest `--ram` | a token reads | tok/s | laptop |
|---:|---|---:|---:|---:|---:|---:|
"
    .to_owned();
    for suggestion in SUGGESTIONS {
        let entry = Entry::of(entries, suggestion.id)?;
        let encoding = suggestion.encoding.map_or(Ok(Encoding::Bf12), str::parse)?;
        let format = entry.footprint(encoding);
        let (_, footprint) =
            format.with_context(|| format!("{} has no known format", suggestion.id))?;
        let ram = (suggestion.ram << 30) / 4 * 3;
        let read = footprint.plan(ram).map(|plan| plan.per_token.read());
        let computing = if encoding == Encoding::Q4 { SIX_CORES } else { LAPTOP[1] };
        writeln!(
            table,
            "| {} GiB | `{}` | {} | {} MiB | {} | {} | {} |",
            suggestion.ram,
            suggestion.command(),
            Size(footprint.bytes),
            footprint.smallest() >> 20,
            read.map_or("–".to_owned(), |read| Size(read).to_string()),
            pace(footprint, ram, SPEEDS),
            pace(footprint, ram, [LAPTOP[0], computing]),
        )?;
    }
    Ok(table)
}

/// Plans for the machines of others, beside their speeds.
pub(super) fn beside(entries: &[Entry]) -> Result<String> {
    let mut table = "\
| model | machine of the measurement | measured, tok/s | by | `sws`, planned | format, GiB |
|---|---|---:|---|---:|---|
"
    .to_owned();
    for published in PUBLISHED {
        let PeerSpeed { by, speed, machine, model, plain, ram, speeds } = published;
        let format = Entry::of(entries, model)?.footprint(plain);
        let (format, footprint) = format.with_context(|| format!("{model} has no {plain}"))?;
        let size = footprint.bytes as f64 / GIB as f64;
        let pace = pace(footprint, ram, speeds);
        writeln!(table, "| {model} | {machine} | {speed} | {by} | {pace} | {format}, {size:.1} |")?;
    }
    Ok(table)
}
