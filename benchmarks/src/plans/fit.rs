//! Costs of a token, fitted to measured points.

use sws_engine::TokenCosts;

use super::Point;

/// Steps of descent, far more than are needed.
const STEPS: usize = 3_000;

/// The costs with the least squares of relative errors at `points`, none below 0. Hits and bytes are
/// the measured ones, so that costs do not make up for them.
pub fn fit<'p>(points: impl IntoIterator<Item = &'p Point>) -> TokenCosts {
    // Cost by cost: time at a cost of 1, relative to the measured time; and what is to be explained.
    let row = |point: &Point| {
        let Point { planned, disk, memory, bytes, seconds, .. } = point;
        let parts =
            [planned.active as f64 / memory, planned.calls, planned.calls * (1.0 - point.hit_rate)];
        (parts.map(|part| part / seconds), 1.0 - bytes / disk / seconds)
    };
    let rows: Vec<([f64; 3], f64)> = points.into_iter().map(row).collect();
    let mut costs = [0.0; 3];
    for step in 0..STEPS {
        let at = step % costs.len();
        let left = |(parts, missing): &([f64; 3], f64)| {
            missing - parts.iter().zip(&costs).map(|(part, cost)| part * cost).sum::<f64>()
        };
        let slope: f64 = rows.iter().map(|row| row.0[at] * left(row)).sum();
        let curve: f64 = rows.iter().map(|row| row.0[at] * row.0[at]).sum();
        if curve > 0.0 {
            costs[at] = f64::max(costs[at] + slope / curve, 0.0);
        }
    }
    let [compute, call, miss] = costs;
    TokenCosts { compute, call, miss }
}
