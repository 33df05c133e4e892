//! The comparison of plans and runs, on made-up points and on the committed ones.

use std::path::{Path, PathBuf};

use sws_benchmarks::plans::{Judged, Point, fit, judged, page, read};
use sws_cache::Trace;
use sws_cache::history::HistoryShape;
use sws_engine::{HitCurve, PerToken, TokenCosts};

const COSTS: TokenCosts = TokenCosts {
    slowdown: 1.2,
    call: 1e-5,
    miss: 5e-5,
    lookup: 2e-4,
    compute: 1.1,
    handing: 1.5e-5,
};

fn committed() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("results/plans.json")
}

/// Points of models whose tokens cost exactly `COSTS`.
fn points() -> Vec<Point> {
    let mut points = Vec::new();
    for (model, calls, expert) in [
        ("a", 32.0, 100_000),
        ("b", 32.0, 5_000_000),
        ("c", 4.0, 200_000_000),
        ("d", 24.0, 10_000_000),
    ] {
        for (share, hit_rate) in [(25, 0.4), (50, 0.7), (100, 1.0)] {
            let experts = calls as u64 * expert;
            let planned = PerToken {
                experts,
                hit_rate,
                active: experts + 10_000_000,
                calls,
                embedding: if share == 100 { 0 } else { 4096 },
                ..PerToken::default()
            };
            let (disk, memory) = (3e9, 4e10);
            let computing = planned.computing(memory, &COSTS);
            points.push(Point {
                model: model.to_owned(),
                encoding: "bf16".to_owned(),
                share,
                ram: 1 << 30,
                planned,
                own_hits: hit_rate,
                computing,
                disk,
                memory,
                hit_rate,
                bytes: planned.read() as f64,
                seconds: planned.seconds(disk, computing, &COSTS),
                waiting: planned.read() as f64 / disk
                    + COSTS.miss * calls * (1.0 - hit_rate)
                    + if share == 100 { 0.0 } else { COSTS.lookup },
            });
        }
    }
    points
}

#[test]
fn known_costs_are_found() {
    let found = fit(&points());
    for (found, cost) in [
        (found.slowdown, COSTS.slowdown),
        (found.compute, COSTS.compute),
        (found.handing, COSTS.handing),
        (found.call, COSTS.call),
        (found.miss, COSTS.miss),
        (found.lookup, COSTS.lookup),
    ] {
        assert!((found / cost - 1.0).abs() < 1e-3, "{found} {cost}");
    }
    let points = points();
    assert!(judged(&points).iter().all(|it| (it.after - 1.0).abs() < 1e-3));
    assert!(page(&points).unwrap().contains("| after a run | 0 % | 0 % | 1.00 | 1.00 |"));
}

#[test]
fn a_model_is_judged_without_its_own_points() {
    let mut points = points();
    points.iter_mut().filter(|it| it.model == "b").for_each(|it| it.seconds *= 2.0);
    let is_off = |ratio: f64| (ratio - 1.0).abs() > 1e-3;
    for it in judged(&points) {
        // Points of the others are judged with costs that the wrong ones have spoilt, where costs say
        // much: of "a", whose tokens are short.
        match &*it.point.model {
            "b" => assert!(!is_off(it.after / 2.0), "{}", it.after),
            "a" => assert!(is_off(it.after), "{}", it.after),
            _ => {}
        }
    }
}

#[test]
fn the_program_says_how_far_off_the_committed_points_were() {
    let points = read(&committed()).unwrap();
    let shape = HistoryShape { layers: 1, experts: 2, top_k: 1 };
    let mut routes = Trace::new(shape).unwrap();
    (0..64).for_each(|token| routes.push(&[token], &[[0]]).unwrap());
    let own = HitCurve::replayed(&routes).unwrap();
    type Of = fn(&Judged<'_>) -> f64;
    let other = HitCurve::general(HistoryShape { layers: 1, experts: 64, top_k: 1 });
    let cases: [(HitCurve, Of); 2] = [(other, |it| it.before), (own, |it| it.after)];
    for (curve, of) in cases {
        let ratios: Vec<f64> = judged(&points).iter().map(of).collect();
        let low = ratios.iter().copied().fold(f64::INFINITY, f64::min);
        let high = ratios.iter().copied().fold(0.0, f64::max);
        let rounded = [low, high].map(|ratio| (100.0 * ratio).round() / 100.0);
        assert_eq!(rounded, curve.accuracy(), "{:?}", curve.tokens());
    }
}

#[test]
fn costs_of_the_program_are_those_of_the_committed_points() {
    let TokenCosts { slowdown, call, miss, lookup, compute, handing } =
        fit(&read(&committed()).unwrap());
    let rounded = |cost: f64| format!("{cost:.2e}").parse::<f64>().unwrap();
    let [slowdown, call, miss] = [slowdown, call, miss].map(rounded);
    let [lookup, compute, handing] = [lookup, compute, handing].map(rounded);
    let found = TokenCosts { slowdown, call, miss, lookup, compute, handing };
    assert_eq!(found, TokenCosts::FITTED);
}
