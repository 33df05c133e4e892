//! Costs of a token, fitted to measured points.

use sws_engine::TokenCosts;

use super::Point;

/// Steps of descent, far more than are needed.
const STEPS: usize = 3_000;

/// The costs with the least squares of relative errors at `points`, none below 0. Hits and bytes are
/// the measured ones, so that costs do not make up for them.
pub fn fit<'p>(points: impl IntoIterator<Item = &'p Point>) -> TokenCosts {
    let points: Vec<&Point> = points.into_iter().collect();
    let misses = |point: &Point| point.planned.calls * (1.0 - point.hit_rate);
    let lookups = |point: &Point| if point.planned.embedding > 0 { 1.0 } else { 0.0 };
    let [call, miss, lookup] = least_squares(&points, |point| {
        let rest = point.bytes / point.disk + point.computing;
        ([point.planned.calls, misses(point), lookups(point)], rest)
    });
    // The same points, as if computing had not been measured.
    let [compute, handing] = least_squares(&points, |point| {
        let costs = call * point.planned.calls + miss * misses(point) + lookup * lookups(point);
        let parts = [point.planned.active as f64 / point.memory, point.planned.calls];
        (parts, point.bytes / point.disk + costs)
    });
    TokenCosts { call, miss, lookup, compute, handing }
}

/// Factors of the parts of a point, which with the rest add up to its seconds.
fn least_squares<const N: usize>(
    points: &[&Point],
    parts: impl Fn(&Point) -> ([f64; N], f64),
) -> [f64; N] {
    let row = |point: &&Point| {
        let (parts, rest) = parts(point);
        (parts.map(|part| part / point.seconds), 1.0 - rest / point.seconds)
    };
    let rows: Vec<([f64; N], f64)> = points.iter().map(row).collect();
    let mut costs = [0.0; N];
    for step in 0..STEPS {
        let at = step % N;
        let left = |(parts, missing): &([f64; N], f64)| {
            missing - parts.iter().zip(&costs).map(|(part, cost)| part * cost).sum::<f64>()
        };
        let slope: f64 = rows.iter().map(|row| row.0[at] * left(row)).sum();
        let curve: f64 = rows.iter().map(|row| row.0[at] * row.0[at]).sum();
        if curve > 0.0 {
            costs[at] = f64::max(costs[at] + slope / curve, 0.0);
        }
    }
    costs
}
