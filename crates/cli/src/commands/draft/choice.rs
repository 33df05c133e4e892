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
    let layers = &recorded.shape.layers;
    let all = (0..layers.len()).flat_map(|place| (0..=DEPTH.min(place)).map(move |d| (place, d)));
    let alone = all.filter(|&(place, distance)| {
        let recall = |who| judge.recall_on_misses(who, distance, layers[place]);
        match (recall(ForecastSource::Draft), recall(ForecastSource::Router)) {
            (Some(draft), Some(router)) => draft <= router,
            // Where nothing was missed, nothing speaks for the simpler forecast.
            _ => false,
        }
    });
    Ok(alone.collect())
}
