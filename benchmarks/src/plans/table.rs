//! The comparison as a table.

use std::fmt::Write as _;

use anyhow::{Result, ensure};
use sws_engine::{PerToken, TokenCosts};

use super::{Point, fit};
use crate::paired::median;

/// A point and what was planned for it.
pub struct Judged<'p> {
    /// The measured point.
    pub point: &'p Point,
    /// Planned tokens per second, over measured ones.
    pub ratio: f64,
    /// The same, had the hit rate been known.
    pub with_hits: f64,
}

/// Judges all points, with costs fitted to the points of other models.
pub fn judged(points: &[Point]) -> Vec<Judged<'_>> {
    points
        .iter()
        .map(|point| {
            let costs = without(points, &point.model);
            let known = PerToken { hit_rate: point.hit_rate, ..point.planned };
            let ratio =
                |token: &PerToken| point.seconds / token.seconds(point.disk, point.memory, &costs);
            Judged { point, ratio: ratio(&point.planned), with_hits: ratio(&known) }
        })
        .collect()
}

fn without(points: &[Point], model: &str) -> TokenCosts {
    fit(points.iter().filter(|point| point.model != model))
}

/// All points, and costs, in Markdown.
pub fn page(points: &[Point]) -> Result<String> {
    ensure!(!points.is_empty(), "there are no points");
    let judged = judged(points);
    let mut text = "| model | encoding | cached | disk, memory GB/s | hits planned | found | MB a token planned | found | tok/s planned | found | planned / found | the same, hits known |\n|---|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|\n".to_owned();
    for Judged { point, ratio, with_hits } in &judged {
        let found = 1.0 / point.seconds;
        writeln!(
            text,
            "| {} | {} | {} % | {:.2}, {:.0} | {:.0} % | {:.0} % | {} | {} | {} | {} | {ratio:.2} | {with_hits:.2} |",
            point.model,
            point.encoding,
            point.share,
            point.disk / 1e9,
            point.memory / 1e9,
            100.0 * point.planned.hit_rate,
            100.0 * point.hit_rate,
            digits(point.planned.read() as f64 / 1e6),
            digits(point.bytes / 1e6),
            digits(ratio * found),
            digits(found),
        )?;
    }
    text += "\n| planned / found | median error | worst error | lowest | highest |\n|---|---:|---:|---:|---:|\n";
    type Of = fn(&Judged<'_>) -> f64;
    let kinds: [(&str, Of); 2] = [("as planned", |it| it.ratio), ("hits known", |it| it.with_hits)];
    for (name, of) in kinds {
        let ratios: Vec<f64> = judged.iter().map(of).collect();
        let errors = || ratios.iter().map(|ratio| (ratio - 1.0).abs());
        writeln!(
            text,
            "| {name} | {:.0} % | {:.0} % | {:.2} | {:.2} |",
            100.0 * median(errors()),
            100.0 * errors().fold(0.0, f64::max),
            ratios.iter().copied().fold(f64::INFINITY, f64::min),
            ratios.iter().copied().fold(0.0, f64::max),
        )?;
    }
    text += "\n| costs fitted without | compute | call µs | miss µs |\n|---|---:|---:|---:|\n";
    let mut names: Vec<&str> = points.iter().map(|point| &*point.model).collect();
    names.dedup();
    let fits = names.iter().map(|name| (*name, without(points, name)));
    for (name, costs) in fits.chain([("none (the program's)", fit(points))]) {
        let TokenCosts { compute, call, miss } = costs;
        let [call, miss] = [1e6 * call, 1e6 * miss];
        writeln!(text, "| {name} | {compute:.2} | {call:.1} | {miss:.0} |")?;
    }
    Ok(text)
}

/// Three digits that count.
fn digits(number: f64) -> String {
    let decimals = match number {
        _ if number >= 99.95 => 0,
        _ if number >= 9.995 => 1,
        _ if number >= 0.9995 => 2,
        _ => 3,
    };
    format!("{number:.decimals$}")
}
