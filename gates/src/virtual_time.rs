//! A run in virtual time: the same cache, policy and queue, with fixed costs for each layer and
//! read, so that time can be asserted to the nanosecond.

use std::time::Duration;

use anyhow::Result;
use sws_cache::policy::PolicyKind;
use sws_engine::{
    ComputeCosts, Counters, Metrics, Options, ProcessMemory, RamBudget, SpeculativeWeightStreamer,
};
use sws_model::{CausalLm, ForwardPass};
use sws_store::SimulatedDisk;
use sws_testing::tales;
use sws_testing::virtual_time::simulated;

use crate::report::Report;
use crate::task::Done;

const EXACT: &str = "two runs in virtual time take the same nanoseconds, stalls and bytes";
const WHOLE: &str = "virtual time is stalls and computing, to the nanosecond";
const SPEED: &str = "no run is shorter than its reading or its computing alone";

const DISK: SimulatedDisk = SimulatedDisk {
    bytes_per_second: 1_200_000_000,
    latency: Duration::from_micros(100),
    devices: 1,
};
const COSTS: ComputeCosts = ComputeCosts {
    infrastructure: Duration::from_nanos(4_001),
    expert: Duration::from_nanos(5_003),
    head: Duration::from_nanos(20_011),
};
const TOKENS: u32 = 40;

pub(crate) fn run(report: &mut Report) -> Result<()> {
    for policy in PolicyKind::ALL {
        for mib in [8, 12] {
            let case = format!("virtual time, {mib} MiB, {policy}");
            let (first, metrics) = generate(policy, mib << 20)?;
            let (second, _) = generate(policy, mib << 20)?;
            let told = |c: &Counters| (c.passes, c.clocks.stalls, c.bytes, c.device_bytes);
            report.check(EXACT, told(&first) == told(&second), || {
                format!("{case}: {:?} and {:?}", told(&first), told(&second))
            });
            // Layers of the model. They have no shared experts.
            let layers = 8;
            let token = COSTS.infrastructure * layers + COSTS.expert * 4 * layers + COSTS.head;
            let passes = first.passes;
            let stalls = first.clocks.stalls.time;
            let computing = token * TOKENS;
            report.check(WHOLE, passes == computing + stalls && stalls > Duration::ZERO, || {
                format!("{case}: {passes:?} are not {computing:?} and {stalls:?}")
            });
            let nanos = u128::from(first.device_bytes) * 1_000_000_000;
            let reading = nanos / u128::from(DISK.bytes_per_second);
            report.check(SPEED, passes.as_nanos() >= reading.max(computing.as_nanos()), || {
                format!("{case}: {passes:?} for {} bytes", first.device_bytes)
            });
            let done = Done {
                budget: mib << 20,
                metrics: serde_json::to_value(metrics)?,
                ..Done::default()
            };
            report.row(&case, "-".to_owned(), &done, None);
        }
    }
    Ok(())
}

/// Decodes some tokens of the bundled model with fewer slots than it needs.
fn generate(policy: PolicyKind, bytes: u64) -> Result<(Counters, Metrics)> {
    let (store, spec) = simulated(&tales(), DISK, 1 << 20)?;
    let options = Options {
        ram_budget: RamBudget::Bytes(bytes),
        process: Some(ProcessMemory::default()),
        context: Some(64),
        policy,
        costs: COSTS,
        ..Options::default()
    };
    let mut lm = SpeculativeWeightStreamer::new(ForwardPass::new(spec), store, options)?;
    let before = lm.counters();
    for token in 0..TOKENS {
        lm.decode((token * 131 + 5) % 4096)?;
    }
    let after = lm.counters();
    let metrics = Metrics::between(&before, &after);
    let mut counters = after;
    counters.device_bytes -= before.device_bytes;
    Ok((counters, metrics))
}
