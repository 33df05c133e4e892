//! A tier is used where it is faster, in simulated time.

use super::*;

/// Costs of an expert in nanoseconds.
#[derive(Clone, Copy, Debug)]
struct Costs {
    here: f64,
    there: f64,
    read: f64,
    copy: f64,
}

/// A small generator (xorshift).
struct Random(u64);

impl Random {
    fn below(&mut self, most: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 33) % most
    }
}

const LAYERS: u32 = 8;
const EXPERTS: u32 = 64;
const CHOSEN: usize = 4;

/// The result of a simulated run.
#[derive(Clone, Copy, Debug, Default)]
struct Simulated {
    time: f64,
    there: usize,
}

/// Generates tokens with so many slots in memory and on the tier. Memory evicts what was used longest ago; a few
/// experts of each layer are used most.
fn simulate(costs: Costs, slots: usize, room: usize, tokens: u32) -> Simulated {
    let mut placement = (room > 0).then(|| Placement::new(true));
    let mut memory: Vec<PieceId> = Vec::new();
    let mut run = Simulated::default();
    let mut random = Random(7);
    for _ in 0..tokens {
        // The layers' other work.
        run.time += 2.0 * costs.here;
        placement.iter_mut().for_each(Placement::pass_begins);
        for layer in 0..LAYERS {
            let began = run.time;
            let mut chosen: Vec<u32> = Vec::new();
            while chosen.len() < CHOSEN {
                let drawn = [(); 3].map(|()| random.below(u64::from(EXPERTS)) as u32);
                let expert = drawn.into_iter().min().unwrap_or(0);
                if !chosen.contains(&expert) {
                    chosen.push(expert);
                }
            }
            if let Some(placement) = &mut placement {
                let is_in = |id| memory.contains(&id) || placement.held().contains(&id);
                let missing = chosen.iter().copied();
                let missing = missing.filter(|expert| !is_in(PieceId::expert(layer, *expert)));
                let missing: Vec<u32> = missing.collect();
                placement.layer_begins(1);
                placement.chosen(layer, &chosen, &missing);
            }
            let is_there = |placement: &Option<Placement>, id| {
                let used = placement.as_ref().filter(|placement| placement.is_used());
                used.is_some_and(|placement| placement.held().contains(&id))
            };
            let ids = chosen.iter().map(|&expert| PieceId::expert(layer, expert));
            let (there, here): (Vec<PieceId>, Vec<PieceId>) =
                ids.partition(|id| is_there(&placement, *id));
            if let (Some(placement), false) = (&mut placement, there.is_empty()) {
                let time = there.len() as f64 * costs.there;
                placement.computed_there(there.len(), time);
                run.time += time;
                run.there += there.len();
            }
            let mut waited = 0.0;
            for id in &here {
                match memory.iter().position(|held| held == id) {
                    Some(at) => drop(memory.remove(at)),
                    None => waited += costs.read,
                }
                memory.push(*id);
                if memory.len() > slots {
                    memory.remove(0);
                }
            }
            run.time += waited + here.len() as f64 * costs.here;
            let Some(placement) = &mut placement else { continue };
            if !here.is_empty() {
                placement.computed_here(here.len(), here.len() as f64 * costs.here);
            }
            for id in &here {
                let has_room = placement.held().len() < room;
                let Some(place) = placement.place(*id, has_room) else { continue };
                run.time += costs.copy;
                placement.copied(*id, place, costs.copy);
                if placement.is_on() {
                    memory.retain(|held| held != id);
                }
            }
            match placement.layer_ends(here.len(), waited, run.time - began) {
                Some(TierChange::Forget) => placement.forget(),
                Some(TierChange::Free) => {
                    memory.retain(|held| !placement.held().contains(held));
                }
                None => {}
            }
        }
    }
    run
}

#[test]
fn a_tier_is_used_where_it_is_faster_and_costs_little_elsewhere() {
    let costs = Costs { here: 1e5, there: 5e4, read: 1e6, copy: 2e5 };
    // Costs, slots in memory, and whether the tier is to be used.
    let cases = [
        (costs, 128, true),
        (costs, 512, true),
        (Costs { there: 3e5, ..costs }, 128, true),
        (Costs { there: 3e5, ..costs }, 512, false),
        (Costs { there: 1e7, ..costs }, 128, false),
        (Costs { there: 1e8, ..costs }, 512, false),
        (Costs { there: 1.05e5, read: 0.0, ..costs }, 64, false),
        (Costs { copy: 1e8, ..costs }, 512, false),
    ];
    for (costs, slots, is_used) in cases {
        let alone = simulate(costs, slots, 0, 2000);
        let tiered = simulate(costs, slots, 128, 2000);
        let speed_up = alone.time / tiered.time;
        let case = format!("{costs:?}, {slots} slots: {speed_up:.3}, {tiered:?}");
        assert!(speed_up > if is_used { 1.05 } else { 0.98 }, "{case}");
    }
}

#[test]
fn the_most_used_experts_move_to_the_tier() {
    let mut placement = Placement::new(true);
    let costs = Costs { here: 1e5, there: 1e4, read: 1e6, copy: 1e5 };
    let id = |expert| PieceId::expert(0, expert);
    let mut copied = Vec::new();
    for pass in 0..4000 {
        placement.pass_begins();
        // Expert 0 always, expert 1 half of the time, and others rarely.
        let chosen = [0, if pass % 2 == 0 { 1 } else { 2 + pass / 2 % 40 }];
        placement.layer_begins(1);
        placement.chosen(0, &chosen, &[]);
        for id in chosen.map(id) {
            if placement.is_used() && placement.held().contains(&id) {
                placement.computed_there(1, costs.there);
                continue;
            }
            placement.computed_here(1, costs.here);
            if let Some(place) = placement.place(id, placement.held().len() < 2) {
                placement.copied(id, place, costs.copy);
                copied.push(id);
            }
        }
        placement.layer_ends(1, 0.0, 1e6);
    }
    let mut held = placement.held().to_vec();
    held.sort_unstable();
    assert_eq!(held, [id(0), id(1)]);
    assert!(copied.len() < 12, "{copied:?}");
}
