//! The comparison as tables.

use std::fmt::Write as _;

use anyhow::{Result, ensure};
use sws_engine::{PerToken, TokenCosts};

use super::{Point, fit};
use crate::paired::median;

/// A point and what was planned for it. Ratios are planned tokens per second over measured ones.
pub struct Judged<'p> {
    /// The measured point.
    pub point: &'p Point,
    /// Before any run of the model.
    pub before: f64,
    /// After an earlier run.
    pub after: f64,
    /// Had the hit rate been known.
    pub with_hits: f64,
    /// After an earlier run, with computing estimated from the speed of memory.
    pub by_memory: f64,
}

/// Judges all points.
pub fn judged(points: &[Point]) -> Vec<Judged<'_>> {
    points.iter().map(|point| judge(points, point)).collect()
}

/// Judges a point, with costs fitted to the points of other models.
fn judge<'p>(points: &[Point], point: &'p Point) -> Judged<'p> {
    let Point { model, planned, disk, memory, computing, .. } = point;
    let costs = without(points, model);
    let ratio = |hit_rate, computing| {
        let token = PerToken { hit_rate, ..*planned };
        point.seconds / token.seconds(*disk, computing, &costs)
    };
    Judged {
        point,
        before: ratio(planned.hit_rate, *computing),
        after: ratio(point.own_hits, *computing),
        with_hits: ratio(point.hit_rate, *computing),
        by_memory: ratio(point.own_hits, planned.computing(*memory, &costs)),
    }
}

/// Costs fitted to the points of other models; the program's, if there are none.
fn without(points: &[Point], model: &str) -> TokenCosts {
    let others = || points.iter().filter(|point| point.model != model);
    if others().next().is_none() { TokenCosts::FITTED } else { fit(others()) }
}

/// All points, errors and costs, in Markdown.
pub fn page(points: &[Point]) -> Result<String> {
    ensure!(!points.is_empty(), "there are no points");
    let judged = judged(points);
    let mut text = String::new();
    type Of = fn(&Judged<'_>) -> f64;
    type Hits = fn(&Point) -> f64;
    let tables: [(&str, Of, Hits); 2] = [
        ("Before any run", |it| it.before, |point| point.planned.hit_rate),
        ("After a run", |it| it.after, |point| point.own_hits),
    ];
    for (title, of, hits) in tables {
        writeln!(text, "## {title}\n")?;
        text += "| model | encoding | cached | hits planned | found | MB a token planned | found | tok/s planned | found | planned / found |\n|---|---|---:|---:|---:|---:|---:|---:|---:|---:|\n";
        for it in &judged {
            let point = it.point;
            let ratio = of(it);
            let found = 1.0 / it.point.seconds;
            let planned = PerToken { hit_rate: hits(point), ..point.planned };
            writeln!(
                text,
                "| {} | {} | {} % | {:.0} % | {:.0} % | {} | {} | {} | {} | {ratio:.2} |",
                point.model,
                point.encoding,
                point.share,
                100.0 * planned.hit_rate,
                100.0 * point.hit_rate,
                digits(planned.read() as f64 / 1e6),
                digits(point.bytes / 1e6),
                digits(ratio * found),
                digits(found),
            )?;
        }
        text.push('\n');
    }
    text += "## The parts of a token\n\n| model | encoding | cached | disk GB/s | memory GB/s | ms computing probed | ms not waiting found | hits known, planned / found |\n|---|---|---:|---:|---:|---:|---:|---:|\n";
    for Judged { point, with_hits, .. } in &judged {
        writeln!(
            text,
            "| {} | {} | {} % | {:.2} | {:.0} | {} | {} | {with_hits:.2} |",
            point.model,
            point.encoding,
            point.share,
            point.disk / 1e9,
            point.memory / 1e9,
            digits(1e3 * point.computing),
            digits(1e3 * (point.seconds - point.waiting)),
        )?;
    }
    text += "\n## Errors\n\n| planned / found | median error | worst error | lowest | highest |\n|---|---:|---:|---:|---:|\n";
    let kinds: [(&str, Of); 4] = [
        ("before any run", |it| it.before),
        ("after a run", |it| it.after),
        ("hits known", |it| it.with_hits),
        ("after a run, computing by the speed of memory", |it| it.by_memory),
    ];
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
    text += "\n## Costs\n\n| costs fitted without | slowdown | call µs | miss µs | lookup µs | compute | handing µs |\n|---|---:|---:|---:|---:|---:|---:|\n";
    let mut names: Vec<&str> = points.iter().map(|point| &*point.model).collect();
    names.dedup();
    let fits = names.iter().map(|name| (*name, without(points, name)));
    for (name, costs) in fits.chain([("none (the program's)", fit(points))]) {
        let TokenCosts { slowdown, call, miss, lookup, compute, handing } = costs;
        let [call, miss, lookup, handing] = [call, miss, lookup, handing].map(|cost| 1e6 * cost);
        writeln!(
            text,
            "| {name} | {slowdown:.2} | {call:.1} | {miss:.0} | {lookup:.0} | {compute:.2} | {handing:.1} |"
        )?;
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
