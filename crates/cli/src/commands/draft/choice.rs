//! The choice between a trained forecast and the router alone, for each layer and distance.

use sws_draft::{DEPTH, ForecastSource, MicroDraftModel};

use super::score::Judge;
use super::{DraftInput, RecordedSequence, check_interrupt};
use crate::interrupt::Interrupt;

/// Size of the cache whose misses count, in percent of all experts.
const BUDGET: f64 = 50.0;

/// Returns the forecasts, as places of layers and distances, that find no more of the misses of the
/// held-out sequences than the layer's router does by itself on the same state. After little training
/// a correction is worse than none.
pub(super) fn routers_alone(
    draft: &MicroDraftModel,
    recorded: &mut DraftInput,
    held_out: &[RecordedSequence],
    interrupt: &Interrupt,
) -> anyhow::Result<Vec<(usize, usize)>> {
    let mut draft = draft.clone();
    let mut judge = Judge::new(recorded, BUDGET);
    judge.baselines = true;
    for sequence in held_out {
        check_interrupt(interrupt)?;
        judge.follow(&mut draft, recorded, sequence)?;
    }
    let mut alone = Vec::new();
    for (place, &layer) in recorded.shape.layers.iter().enumerate() {
        for distance in 0..=DEPTH.min(place) {
            let drafts = judge.recall_on_misses(ForecastSource::Draft, distance, layer);
            let routers = judge.recall_on_misses(ForecastSource::Router, distance, layer);
            // Where nothing was missed, nothing speaks for the simpler forecast.
            if let (Some(drafts), Some(routers)) = (drafts, routers)
                && drafts <= routers
            {
                alone.push((place, distance));
            }
        }
    }
    Ok(alone)
}
