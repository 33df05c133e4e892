//! Results of a cell, as JSON, as a table, and against the targets.

use std::fmt::Write;

use serde::{Deserialize, Serialize};
use sws_kernels::{Encoding, Fp8Scales};

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
    /// For bf12 and bf11, and in batches: speed-up over our bf16 in the same tier, in weights per
    /// second.
    pub over_bf16: Option<f64>,
}

pub(super) fn records(
    cell: &Cell,
    contenders: &[Contender<'_>],
    timings: &[Timing],
) -> Vec<Record> {
    let sum = contenders.iter().position(|c| c.name == "sum");
    let gemm = contenders.iter().position(|c| c.name.starts_with("gemm"));
    let candle = contenders.iter().position(|c| c.name.starts_with("candle"));
    let peers = [sum, gemm, candle];
    let mut records = Vec::new();
    for (i, (contender, timing)) in contenders.iter().zip(timings).enumerate() {
        let name = &contender.name;
        let seconds = timing.median();
        let is_ours = !peers.contains(&Some(i)) && !name.starts_with("bf16 ");
        let weights_over = |other: Option<usize>| match other {
            Some(other) if is_ours => Some(timing.speed_over(&timings[other])),
            _ => None,
        };
        let bf16 = contenders.iter().position(|c| c.name.strip_prefix("bf16 ") == Some(name));
        let flop = if name == "sum" { 0.0 } else { 2.0 * cell.tokens as f64 };
        records.push(Record {
            encoding: cell.encoding.to_string(),
            tokens: cell.tokens,
            threads: cell.threads,
            rows: cell.rows,
            cols: cell.cols,
            contender: name.clone(),
            gb_per_s: contender.bytes / seconds / 1e9,
            gweights_per_s: contender.weights / seconds / 1e9,
            gflop_per_s: contender.weights * flop / seconds / 1e9,
            over_sum: weights_over(sum),
            over_gemm: weights_over(gemm),
            over_candle: weights_over(candle),
            over_bf16: weights_over(bf16),
        });
    }
    records
}

impl Record {
    /// The record as a row of the table.
    pub fn line(&self) -> String {
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

fn ratio(ratio: Option<f64>) -> String {
    ratio.map_or("-".to_owned(), |ratio| format!("{ratio:.2}"))
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

/// A table in Markdown: of each encoding the ratios of one token to the sum and of batches to bf16,
/// in each tier, with the most threads.
pub(super) fn summary(records: &[Record]) -> String {
    fn listed<T: Ord + Clone>(all: impl Iterator<Item = T>) -> Vec<T> {
        let mut list = Vec::new();
        for item in all {
            if !list.contains(&item) {
                list.push(item);
            }
        }
        list
    }
    let threads = records.iter().map(|record| record.threads).max().unwrap_or(0);
    let records = || records.iter().filter(|record| record.threads == threads);
    let tiers = listed(records().filter(|r| r.over_sum.is_some()).map(|r| &r.contender));
    let tokens = listed(records().map(|r| r.tokens));
    let mut columns: Vec<(usize, &String)> = Vec::new();
    for tokens in tokens {
        for &tier in &tiers {
            columns.push((tokens, tier));
        }
    }
    let mut text = "| encoding |".to_owned();
    for (tokens, tier) in &columns {
        let against = if *tokens == 1 { "1 token / sum" } else { "tokens / bf16" };
        let count = if *tokens == 1 { String::new() } else { format!("{tokens} ") };
        text.push_str(&format!(" {count}{against}, {tier} |"));
    }
    text.push_str(&format!("\n|---|{}\n", "---:|".repeat(columns.len())));
    for encoding in listed(records().map(|r| &r.encoding)) {
        text.push_str(&format!("| {encoding} |"));
        for (tokens, tier) in &columns {
            let is_cell = |r: &&Record| {
                r.encoding == *encoding && r.tokens == *tokens && r.contender == **tier
            };
            let cell = records().find(is_cell);
            let ratio = cell.and_then(|r| if r.tokens == 1 { r.over_sum } else { r.over_bf16 });
            text.push_str(&ratio.map_or(" |".to_owned(), |ratio| format!(" {ratio:.2} |")));
        }
        text.push('\n');
    }
    text
}

/// Targets of the fastest tier for an encoding: tokens, the peer, and the smallest ratio.
fn targets_of(encoding: Encoding) -> Vec<(usize, Against, f64)> {
    use Encoding::{Bf11, Bf12, Bf16, F16, F32, Fp7, Fp8, Nested, Q8};
    let one = match encoding {
        Bf16 | Bf12 => Some(0.95),
        Q8 | Fp8(Fp8Scales::Squares | Fp8Scales::SquaresBf16) => Some(0.8),
        F32 | F16 | Bf11 | Nested | Fp7(_) => None,
        _ => Some(0.6),
    };
    let mut targets: Vec<_> = one.into_iter().map(|at_least| (1, Against::Sum, at_least)).collect();
    if encoding == Bf12 {
        targets.push((1, Against::Bf16, 1.25));
    }
    for tokens in [64, 512] {
        match encoding {
            Bf16 | Bf12 => targets.push((tokens, Against::Gemm, 0.85)),
            _ => targets.push((tokens, Against::Bf16, 0.7)),
        }
    }
    targets
}

#[derive(Clone, Copy)]
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
    for encoding in Encoding::ALL {
        for (tokens, against, at_least) in targets_of(encoding) {
            let judged = records.iter().filter(|r| {
                r.encoding == encoding.name()
                    && r.tokens == tokens
                    && (tokens > 1 || r.threads == 2)
                    && ["avx512", "avx2"].contains(&r.contender.as_str())
            });
            for record in judged {
                let (peer, ratio) = match against {
                    Against::Sum => ("sum", record.over_sum),
                    Against::Gemm => ("gemm f32", record.over_gemm),
                    Against::Bf16 => ("bf16", record.over_bf16),
                };
                let Some(ratio) = ratio else { continue };
                let verdict = match (record.contender == "avx512", ratio >= at_least) {
                    (_, true) => "ok",
                    (true, false) => "below",
                    (false, false) => "below (reported only)",
                };
                writeln!(
                    text,
                    "{encoding} {}, {} tokens, {} threads, over {peer}: {ratio:.2} (at least {at_least}): {verdict}",
                    record.contender, record.tokens, record.threads
                )
                .expect("writing to a string");
            }
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
        let cases: [(_, _, _, Seconds<'_>, &[&str]); 8] = [
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
            (
                64,
                2,
                Q4,
                &[("avx512", 1.0), ("avx2", 1.5), ("bf16 avx512", 0.69), ("bf16 avx2", 1.2)],
                &[
                    "avx512, 64 tokens, 2 threads, over bf16: 0.69 (at least 0.7): below",
                    "avx2, 64 tokens, 2 threads, over bf16: 0.80 (at least 0.7): ok",
                ],
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
