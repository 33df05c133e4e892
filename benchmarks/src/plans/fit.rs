//! Costs of a token, fitted to measured points.

use sws_engine::TokenCosts;

use super::Point;

/// Steps of descent, far more than are needed.
const STEPS: usize = 5_000;

/// The costs with the least squares of relative errors at `points`, none below 0: those of computing
/// to the time that a token did not wait, those of reads to the time that it did. Hits and bytes are the
/// measured ones, so that costs do not make up for them.
pub fn fit<'p>(points: impl IntoIterator<Item = &'p Point>) -> TokenCosts {
    let points: Vec<&Point> = points.into_iter().collect();
    let [slowdown, call, handling] = least_squares(&points, computing, |point| {
        ([point.computing, point.planned.calls, misses(point)], computing(point))
    });
    let [waiting, lookup] = least_squares(
        &points,
        |point| point.seconds,
        |point| ([misses(point), lookups(point)], point.waiting - point.bytes / point.disk),
    );
    // The same points, as if computing had not been measured.
    let [compute, handing] = least_squares(&points, computing, |point| {
        let parts = [point.planned.active as f64 / point.memory, point.planned.calls];
        let rest = call * point.planned.calls + handling * misses(point);
        (parts.map(|part| slowdown * part), computing(point) - rest)
    });
    TokenCosts { slowdown, call, miss: handling + waiting, lookup, compute, handing }
}

fn misses(point: &Point) -> f64 {
    point.planned.calls * (1.0 - point.hit_rate)
}

fn lookups(point: &Point) -> f64 {
    if point.planned.embedding > 0 { 1.0 } else { 0.0 }
}

fn computing(point: &Point) -> f64 {
    point.seconds - point.waiting
}

/// Factors of the parts of a point, which add up to a sum; errors are relative to `scale`.
fn least_squares<const N: usize>(
    points: &[&Point],
    scale: impl Fn(&Point) -> f64,
    parts: impl Fn(&Point) -> ([f64; N], f64),
) -> [f64; N] {
    let mut rows = Vec::with_capacity(points.len());
    for point in points {
        let (parts, sum) = parts(point);
        let scale = scale(point);
        rows.push((parts.map(|part| part / scale), sum / scale));
    }
    let mut costs = [0.0; N];
    for step in 0..STEPS {
        let at = step % N;
        let mut slope = 0.0;
        let mut curve = 0.0;
        for (parts, sum) in &rows {
            let left = sum - parts.iter().zip(&costs).map(|(part, cost)| part * cost).sum::<f64>();
            slope += parts[at] * left;
            curve += parts[at] * parts[at];
        }
        if curve > 0.0 {
            costs[at] = f64::max(costs[at] + slope / curve, 0.0);
        }
    }
    costs
}
