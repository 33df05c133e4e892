//! Results of a cell, as JSON, as a table, and against the targets.

use std::fmt::Write;

use serde::{Deserialize, Serialize};
use sws_kernels::{Encoding, Published};

use super::measure::{Contender, Timing};

/// One cell of the table.
pub(super) struct Cell {
    pub(super) encoding: Encoding,
    pub(super) tokens: usize,
    pub(super) threads: usize,
    pub(super) rows: usize,
    pub(super) cols: usize,
}

/// Results of one contender in one cell: the fields of a line of JSON.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Record {
    /// Encoding of our weights in this cell.
    pub encoding: String,
    /// Tokens per call.
    pub tokens: usize,
    /// Number of threads.
    pub threads: usize,
    /// Rows of a matrix.
    pub rows: usize,
    /// Columns of a matrix.
    pub cols: usize,
    /// A tier of ours, or the name of a peer.
    pub contender: String,
    /// GB of weights per second in the contender's own format: the median round.
    pub gb_per_s: f64,
    /// Billions of weights per second.
    pub gweights_per_s: f64,
    /// Billions of multiplications and additions per second.
    pub gflop_per_s: f64,
    /// For our tiers: speed-up over the plain sum in bytes per second, the median of the rounds'
    /// ratios.
    pub over_sum: Option<f64>,
    /// For our tiers: speed-up over the `gemm` crate in weights per second.
    pub over_gemm: Option<f64>,
    /// For our tiers: speed-up over candle's nearest format in weights per second.
    pub over_candle: Option<f64>,
    /// For bf12 and bf11: speed-up over our bf16 in the same tier, in weights per second.
    pub over_bf16: Option<f64>,
}

pub(super) fn records(
    cell: &Cell,
    contenders: &[Contender<'_>],
    timings: &[Timing],
) -> Vec<Record> {
    let find = |is: &dyn Fn(&str) -> bool| contenders.iter().position(|c| is(&c.name));
    let sum = find(&|name| name == "sum");
    let gemm = find(&|name| name.starts_with("gemm"));
    let candle = find(&|name| name.starts_with("candle"));
    let bf16 = find(&|name| name.starts_with("bf16 "));
    let peers = [sum, gemm, candle, bf16];
    contenders
        .iter()
        .zip(timings)
        .enumerate()
        .map(|(i, (contender, timing))| {
            let seconds = timing.median();
            let is_ours = !peers.contains(&Some(i));
            let weights_over = |other: Option<usize>| {
                let other = other.filter(|_| is_ours)?;
                Some(timing.speed_over(&timings[other]))
            };
            let same_tier = |b: &usize| contenders[*b].name == format!("bf16 {}", contender.name);
            let is_multiplication = contender.name != "sum";
            let flop = if is_multiplication { 2.0 * cell.tokens as f64 } else { 0.0 };
            Record {
                encoding: cell.encoding.to_string(),
                tokens: cell.tokens,
                threads: cell.threads,
                rows: cell.rows,
                cols: cell.cols,
                contender: contender.name.clone(),
                gb_per_s: contender.bytes / seconds / 1e9,
                gweights_per_s: contender.weights / seconds / 1e9,
                gflop_per_s: contender.weights * flop / seconds / 1e9,
                over_sum: weights_over(sum),
                over_gemm: weights_over(gemm),
                over_candle: weights_over(candle),
                over_bf16: weights_over(bf16.filter(same_tier)),
            }
        })
        .collect()
}

impl Record {
    /// The record as a row of the table.
    pub fn line(&self) -> String {
        let ratio = |r: Option<f64>| r.map_or("-".to_owned(), |r| format!("{r:.2}"));
        format!(
            "{:8} {:>6} {:>7}  {:12} {:>8.1} {:>10.2} {:>9.1} {:>6} {:>6} {:>7} {:>6}",
            self.encoding,
            self.tokens,
            self.threads,
            self.contender,
            self.gb_per_s,
            self.gweights_per_s,
            self.gflop_per_s,
            ratio(self.over_sum),
            ratio(self.over_gemm),
            ratio(self.over_candle),
            ratio(self.over_bf16),
        )
    }
}

/// All records, aligned.
pub(super) fn table(records: &[Record]) -> String {
    let mut text = format!(
        "{:8} {:>6} {:>7}  {:12} {:>8} {:>10} {:>9} {:>6} {:>6} {:>7} {:>6}\n",
        "encoding",
        "tokens",
        "threads",
        "contender",
        "GB/s",
        "Gweight/s",
        "GFLOP/s",
        "/sum",
        "/gemm",
        "/candle",
        "/bf16",
    );
    for record in records {
        text.push_str(&record.line());
        text.push('\n');
    }
    text
}

const INT4: Encoding = Encoding::Published(Published::Int4);
const NVFP4: Encoding = Encoding::Published(Published::Nvfp4);
const FP8_BF16: Encoding = Encoding::Published(Published::Fp8Bf16);

/// Targets of the fastest tier, by encoding, tokens and threads.
const TARGETS: [Target; 14] = [
    Target { encoding: Encoding::Bf16, tokens: 1, against: Against::Sum, at_least: 0.95 },
    Target { encoding: Encoding::Bf12, tokens: 1, against: Against::Sum, at_least: 0.95 },
    Target { encoding: Encoding::Bf12, tokens: 1, against: Against::Bf16, at_least: 1.25 },
    Target { encoding: Encoding::Q8, tokens: 1, against: Against::Sum, at_least: 0.8 },
    Target { encoding: Encoding::Fp8, tokens: 1, against: Against::Sum, at_least: 0.8 },
    Target { encoding: Encoding::Q4, tokens: 1, against: Against::Sum, at_least: 0.6 },
    Target { encoding: Encoding::Mxfp4, tokens: 1, against: Against::Sum, at_least: 0.6 },
    Target { encoding: INT4, tokens: 1, against: Against::Sum, at_least: 0.6 },
    Target { encoding: NVFP4, tokens: 1, against: Against::Sum, at_least: 0.6 },
    Target { encoding: FP8_BF16, tokens: 1, against: Against::Sum, at_least: 0.8 },
    Target { encoding: Encoding::Bf16, tokens: 64, against: Against::Gemm, at_least: 0.85 },
    Target { encoding: Encoding::Bf16, tokens: 512, against: Against::Gemm, at_least: 0.85 },
    Target { encoding: Encoding::Bf12, tokens: 64, against: Against::Gemm, at_least: 0.85 },
    Target { encoding: Encoding::Bf12, tokens: 512, against: Against::Gemm, at_least: 0.85 },
];

struct Target {
    encoding: Encoding,
    tokens: usize,
    against: Against,
    at_least: f64,
}

enum Against {
    Sum,
    Gemm,
    Bf16,
}

/// One line per target and matching record.
///
/// Targets for one token hold at two threads, which share one memory; those for batches at any
/// number of threads. They apply to AVX-512; AVX2 is only reported.
pub(super) fn targets(records: &[Record]) -> String {
    let mut text = String::new();
    for target in &TARGETS {
        let name = target.encoding.name();
        let judged = records.iter().filter(|r| {
            r.encoding == name
                && r.tokens == target.tokens
                && (target.tokens > 1 || r.threads == 2)
                && ["avx512", "avx2"].contains(&r.contender.as_str())
        });
        for record in judged {
            let (peer, ratio) = match target.against {
                Against::Sum => ("sum", record.over_sum),
                Against::Gemm => ("gemm f32", record.over_gemm),
                Against::Bf16 => ("bf16", record.over_bf16),
            };
            let Some(ratio) = ratio else { continue };
            let verdict = match (record.contender == "avx512", ratio >= target.at_least) {
                (_, true) => "ok",
                (true, false) => "below",
                (false, false) => "below (reported only)",
            };
            writeln!(
                text,
                "{name} {}, {} tokens, {} threads, over {peer}: {ratio:.2} (at least {}): {verdict}",
                record.contender, record.tokens, record.threads, target.at_least
            )
            .expect("writing to a string");
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn contender(name: &str, bytes: f64) -> Contender<'_> {
        let call = Box::new(|_| Ok(()));
        Contender { name: name.to_owned(), bytes, weights: 1e9, call }
    }

    fn judge(tokens: usize, threads: usize, encoding: Encoding, seconds: &[(&str, f64)]) -> String {
        let contenders: Vec<_> = seconds.iter().map(|(name, _)| contender(name, 2e9)).collect();
        let timings: Vec<_> =
            seconds.iter().map(|(_, s)| Timing { rounds: vec![*s, 2.0 * s, *s] }).collect();
        let cell = Cell { encoding, tokens, threads, rows: 1, cols: 1_000_000_000 };
        targets(&records(&cell, &contenders, &timings))
    }

    #[test]
    fn rates_and_ratios() {
        let contenders =
            [contender("sum", 2e9), contender("avx2", 2e9), contender("gemm f32", 4e9)];
        let timings = [0.5, 1.0, 4.0].map(|s| Timing { rounds: vec![s] });
        let cell = Cell { encoding: Encoding::Bf16, tokens: 3, threads: 1, rows: 1, cols: 1 };
        let [sum, own, gemm] = records(&cell, &contenders, &timings).try_into().unwrap();
        assert_eq!((own.gb_per_s, own.gweights_per_s, own.gflop_per_s), (2.0, 1.0, 6.0));
        assert_eq!((own.over_sum, own.over_gemm, own.over_candle), (Some(0.5), Some(4.0), None));
        assert_eq!((sum.gb_per_s, sum.gflop_per_s, sum.over_sum), (4.0, 0.0, None));
        assert_eq!((gemm.gb_per_s, gemm.gflop_per_s, gemm.over_sum), (1.0, 1.5, None));
    }

    #[test]
    fn verdicts() {
        use Encoding::{Bf12, Bf16, Q4};
        type Seconds<'a> = &'a [(&'a str, f64)];
        let cases: [(_, _, _, Seconds<'_>, &[&str]); 7] = [
            (
                1,
                2,
                Bf16,
                &[("sum", 0.95), ("avx512", 1.0)],
                &["over sum: 0.95 (at least 0.95): ok"],
            ),
            (1, 2, Bf16, &[("sum", 0.94), ("avx512", 1.0)], &["0.94 (at least 0.95): below"]),
            (1, 2, Bf16, &[("sum", 0.9), ("avx2", 1.0)], &["0.90 (at least 0.95): below (rep"]),
            (1, 2, Q4, &[("sum", 0.61), ("avx512", 1.0)], &["over sum: 0.61 (at least 0.6): ok"]),
            (64, 1, Bf16, &[("avx512", 1.0), ("gemm f32", 0.5)], &["over gemm f32: 0.50", "below"]),
            (
                1,
                2,
                Bf12,
                &[("sum", 1.0), ("avx512", 1.0), ("bf16 avx512", 1.3)],
                &["over sum: 1.00 (at least 0.95): ok", "over bf16: 1.30 (at least 1.25): ok"],
            ),
            // Neither one thread alone nor eight tokens nor an unmeasured peer has a target.
            (1, 1, Bf16, &[("sum", 0.5), ("avx512", 1.0)], &[]),
        ];
        for (tokens, threads, encoding, seconds, expected) in cases {
            let text = judge(tokens, threads, encoding, seconds);
            assert!(expected.iter().all(|part| text.contains(part)), "{text}");
            assert_eq!(text.is_empty(), expected.is_empty(), "{text}");
        }
        assert_eq!(judge(8, 2, Bf16, &[("sum", 0.5), ("avx512", 1.0), ("gemm f32", 0.1)]), "");
        assert_eq!(judge(64, 2, Bf16, &[("sum", 0.5), ("avx512", 1.0)]), "");
    }
}
