//! Stories of recorded routes.

use sws_cache::Trace;
use sws_cache::policy::PolicyKind;
use sws_cache::replay::Residency;
use sws_engine::watch::LayerRow;
use sws_format::Pass;

use crate::{ExpertState, RunStep, Story, StorySubject, Wall};

/// A simulated cache for recorded routes, which contain no cache.
#[derive(Clone, Copy, Debug)]
pub struct Simulated {
    /// Policy of the cache.
    pub policy: PolicyKind,
    /// Number of slots.
    pub slots: usize,
}

/// Builds a story from recorded routes: the experts that each pass used, in a simulated cache if
/// there is one. Times and texts are not recorded. Layers are numbered among those with experts.
pub fn recorded(model: &str, trace: &Trace, cache: Option<Simulated>) -> Story {
    let shape = trace.shape();
    let rows: Vec<LayerRow> =
        (0..shape.layers).map(|layer| LayerRow { layer, experts: shape.experts }).collect();
    let mut about = StorySubject { model: model.to_owned(), ..StorySubject::default() };
    about.notes.push(
        "Recorded routes: which experts were used. No times, bytes or texts are recorded."
            .to_owned(),
    );
    if let Some(Simulated { policy, slots }) = cache {
        let all = shape.layers * shape.experts;
        about.notes.push(format!(
            "What is in memory is simulated: {slots} slots for {all} experts, policy {}, empty at first.",
            policy.name(),
        ));
        about.has_places = true;
    }
    let mut story = Story::new(about, rows.clone());
    let mut wall = Wall::new(rows);
    let mut residency =
        cache.map(|Simulated { policy, slots }| Residency::new(shape, policy, slots, 1));
    for sequence in trace.sequences() {
        let first = sequence.start;
        for tokens in trace.passes(sequence) {
            let mut pass = Pass::default();
            match trace.tokens().get(tokens.clone()) {
                Some(ids) if !ids.is_empty() => pass.push(0, tokens.start - first, ids),
                _ => pass.push_unknown(0, tokens.start - first, tokens.len()),
            }
            let step = play(trace, tokens.clone(), &pass, residency.as_mut(), &mut wall);
            for token in tokens.clone() {
                let text = match trace.tokens().get(token) {
                    Some(id) => format!(" {id}"),
                    None => format!(" #{token}"),
                };
                // The choices of a pass belong to all of its tokens, so only the last one has a
                // cost.
                let is_last = token + 1 == tokens.end;
                story.token(&text, if is_last { step } else { RunStep::default() });
            }
            story.frame(&wall, None);
        }
    }
    story
}

/// Runs a pass through the layers of the simulated cache.
fn play(
    trace: &Trace,
    tokens: std::ops::Range<usize>,
    pass: &Pass,
    mut residency: Option<&mut Residency>,
    wall: &mut Wall,
) -> RunStep {
    let shape = trace.shape();
    let mut step = RunStep::default();
    if let Some(residency) = &mut residency {
        residency.begin(pass);
    }
    wall.states.fill(ExpertState::Disk);
    let mut experts = Vec::new();
    for layer in 0..shape.layers {
        experts.clear();
        for token in tokens.clone() {
            experts.extend(trace.experts(token, layer).iter().copied().map(u32::from));
        }
        let row = &mut wall.states[layer * shape.experts..(layer + 1) * shape.experts];
        let missing = match &mut residency {
            Some(residency) => residency.layer(layer, &experts),
            None => &[],
        };
        for &expert in &experts {
            row[expert as usize] = ExpertState::Used;
        }
        for &expert in missing {
            row[expert as usize] = ExpertState::Waited;
        }
        step.misses += missing.len() as u64;
        step.hits += row.iter().filter(|&&state| state == ExpertState::Used).count() as u64;
    }
    if let Some(residency) = residency {
        for (number, state) in wall.states.iter_mut().enumerate() {
            let layer = number / shape.experts;
            let expert = number % shape.experts;
            if *state == ExpertState::Disk && residency.holds(layer, expert as u32) {
                *state = ExpertState::Memory;
            }
        }
    }
    step
}

#[cfg(test)]
mod tests {
    use sws_cache::history::HistoryShape;

    use super::*;

    #[test]
    fn a_story_of_routes_has_no_times() {
        let mut trace = Trace::new(HistoryShape { layers: 2, experts: 4, top_k: 1 }).unwrap();
        trace.push(&[11, 12], &[[0, 1], [2, 2]]).unwrap();
        trace.push(&[13], &[[0], [3]]).unwrap();
        trace.end_sequence();
        let bare = recorded("routes", &trace, None);
        assert!(!bare.about.is_timed && !bare.about.has_places);
        assert_eq!(
            bare.tokens().iter().map(|token| token.text.as_str()).collect::<String>(),
            " 11 12 13"
        );
        let states: Vec<&str> = bare.frames().iter().map(|frame| frame.states.as_str()).collect();
        let cells = |states: &[u8]| -> Vec<u8> {
            states.iter().flat_map(|letter| [(letter - b'A') % 5, (letter - b'A') / 5]).collect()
        };
        let disk = ExpertState::Disk as u8;
        let memory = ExpertState::Memory as u8;
        let used = ExpertState::Used as u8;
        let waited = ExpertState::Waited as u8;
        assert_eq!(cells(states[0].as_bytes()), [used, used, disk, disk, disk, disk, used, disk]);
        assert_eq!(bare.total(), RunStep { hits: 5, ..RunStep::default() });

        let cache = Simulated { policy: PolicyKind::default(), slots: 8 };
        let cached = recorded("routes", &trace, Some(cache));
        assert_eq!((cached.total().hits, cached.total().misses), (1, 4));
        let last = cells(cached.frames()[1].states.as_bytes());
        assert_eq!(last, [used, memory, disk, disk, disk, disk, memory, waited]);
        assert!(cached.about.notes[1].contains("8 slots for 8 experts"));
    }
}
