//! Experts on a graphics card, in a plan.

use anyhow::bail;
use serde::Serialize;
use sws::{Format, Outline, VramChoice, VramPlan};
use sws_engine::TierHits;
use sws_kernels::Activations;

use crate::args::PlanArgs;
use crate::commands::rounded::about;
use crate::commands::size;
use crate::terminal::note;

/// The card of `--vram`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Card {
    /// Bytes that may be used of it.
    limit: u64,
    activations: Activations,
    /// True if the model is planned without it where it has no use.
    is_optional: bool,
}

impl Card {
    /// The card that the options name; `None` without one. The reason why `auto` finds none is said.
    pub(crate) fn of(args: &PlanArgs) -> anyhow::Result<Option<Card>> {
        let is_optional = args.vram == VramChoice::Auto;
        if is_optional && args.describe.is_some() {
            bail!(
                "--vram auto is the card of this machine, and --describe another machine; name a size"
            );
        }
        let activations = args.activations;
        let card = args.vram.limit();
        let card = card.map(|limit| limit.map(|limit| Card { limit, activations, is_optional }));
        or_said(card, is_optional)
    }

    /// Experts of a model that it holds; `None` for none, the reason of which is said.
    pub(crate) fn holds(
        &self,
        plan: impl FnOnce(u64) -> sws::Result<VramPlan>,
    ) -> anyhow::Result<Option<VramPlan>> {
        or_said(plan(self.limit).map(Some), self.is_optional)
    }

    /// Experts that it holds of a model in a format.
    pub(crate) fn holds_of(
        &self,
        outline: &Outline,
        format: Format,
    ) -> anyhow::Result<Option<VramPlan>> {
        self.holds(|limit| outline.vram(format, limit, self.activations))
    }

    /// Bytes of the machine's memory that it takes for a model in a format; 0 if it holds nothing of it.
    pub(crate) fn host_bytes(&self, outline: &Outline, format: Format) -> u64 {
        let held = outline.vram(format, self.limit, self.activations);
        held.map_or(0, |held| held.host_bytes)
    }
}

/// The value, or `None` after the reason was said.
fn or_said<T>(found: sws::Result<Option<T>>, is_optional: bool) -> anyhow::Result<Option<T>> {
    match found {
        Err(why) if is_optional => {
            note!("sws: experts stay on the CPU: {why}");
            Ok(None)
        }
        found => Ok(found?),
    }
}

/// Room of a graphics card for experts, and the hits that are expected of it.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct VramEstimate {
    #[serde(flatten)]
    plan: VramPlan,
    on_tier: Option<f64>,
    in_memory: Option<f64>,
    read_bytes_per_token: Option<u64>,
    /// Not measured: no card is.
    tokens_per_second: Option<f64>,
    #[serde(skip)]
    expected: TierExpectation,
}

/// The places of experts that are expected with a card.
#[derive(Clone, Copy, Debug)]
pub(crate) enum TierExpectation {
    Hits(TierHits),
    /// Memory has no slots, from which experts move to the card.
    NoSlots,
    /// The model does not run within so many bytes beside the card.
    TooLittle(u64),
}

impl TierExpectation {
    /// That of a plan.
    pub(crate) fn of(hits: Option<TierHits>) -> TierExpectation {
        hits.map_or(TierExpectation::NoSlots, TierExpectation::Hits)
    }
}

impl VramEstimate {
    pub(crate) fn new(plan: VramPlan, expected: TierExpectation) -> VramEstimate {
        let hits = match expected {
            TierExpectation::Hits(hits) => Some(hits),
            TierExpectation::NoSlots | TierExpectation::TooLittle(_) => None,
        };
        VramEstimate {
            plan,
            on_tier: hits.map(|hits| hits.on_tier),
            in_memory: hits.map(|hits| hits.in_memory),
            read_bytes_per_token: hits.map(|hits| hits.read_bytes_per_token),
            tokens_per_second: None,
            expected,
        }
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
        let expected = match self.expected {
            TierExpectation::Hits(TierHits { on_tier, in_memory, read_bytes_per_token }) => {
                format!(
                    "if it is faster than the CPU, {} of the experts of a token are computed there, {} are in memory, and {} are read; speed: not measured",
                    percent(on_tier),
                    percent(in_memory),
                    about(read_bytes_per_token),
                )
            }
            TierExpectation::NoSlots => {
                "the budget has no slots for experts, which alone can move there; raise --ram"
                    .to_owned()
            }
            TierExpectation::TooLittle(ram) => format!(
                "but with what it takes of memory the model does not run within {}; raise --ram",
                size(ram)
            ),
        };
        format!("{room}; {expected}\n")
    }
}
