//! Experts on a graphics card, in a plan.

use anyhow::bail;
use serde::Serialize;
use sws::{VramChoice, VramPlan};
use sws_engine::TierHits;

use crate::args::PlanArgs;
use crate::commands::rounded::about;
use crate::commands::size;
use crate::terminal::note;

/// What a graphics card has room for, and what is expected of it.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct VramEstimate {
    #[serde(flatten)]
    plan: VramPlan,
    /// `None` without slots in memory.
    #[serde(flatten)]
    hits: Option<TierHits>,
    /// Not measured: no card is.
    tokens_per_second: Option<f64>,
}

/// What the card of `--vram` has room for, if there is one. The reason why `auto` finds none is named.
pub(crate) fn planned(
    args: &PlanArgs,
    plan: impl FnOnce(u64) -> sws::Result<VramPlan>,
) -> anyhow::Result<Option<VramPlan>> {
    if args.vram == VramChoice::Auto && args.describe.is_some() {
        bail!(
            "--vram auto is the card of this machine, and --describe another machine; name a size"
        );
    }
    match (args.vram.limit().and_then(|limit| limit.map(plan).transpose()), args.vram) {
        (Err(why), VramChoice::Auto) => {
            note!("sws: experts stay on the CPU: {why}");
            Ok(None)
        }
        (planned, _) => Ok(planned?),
    }
}

impl VramEstimate {
    pub(crate) fn new(plan: VramPlan, hits: Option<TierHits>) -> VramEstimate {
        VramEstimate { plan, hits, tokens_per_second: None }
    }

    /// A line.
    pub(crate) fn text(&self) -> String {
        let VramPlan { limit, bytes, slots, experts, .. } = self.plan;
        let room = format!(
            "with {} of a card: room for {slots} of {experts} experts, in {} with buffers",
            size(limit),
            size(bytes)
        );
        let percent = |share: f64| format!("{:.0} %", 100.0 * share);
        let expected = match self.hits {
            Some(TierHits { on_tier, in_memory, read_bytes_per_token }) => format!(
                "if it is faster than the CPU, {} of the experts of a token are computed there, {} are in memory, and {} are read; speed: not measured",
                percent(on_tier),
                percent(in_memory),
                about(read_bytes_per_token),
            ),
            None => "the budget has no slots for experts, which alone can move there; raise --ram"
                .to_owned(),
        };
        format!("{room}; {expected}\n")
    }
}
