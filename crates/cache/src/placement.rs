//! Decides which experts lie on a tier beside memory, and whether it is used: by counted uses and measured times.

use std::collections::HashMap;

use sws_format::PieceId;

/// Tokens of a pass up to which it counts as one of few. Prompts have more, and share each expert among many rows.
const FEW: usize = 16;
/// Passes between two attempts, times the length of the break.
const WINDOW: u32 = 16;
/// Maximum length of a break in windows.
const MAX_BACKOFF: u32 = 64;
/// Experts that are computed on the tier, and on the CPU, before an attempt is decided.
const ENOUGH: f64 = 64.0;
/// Experts computed on the tier after which an attempt may end early.
const EARLY: f64 = 8.0;
/// Experts over which times are averaged.
const MEMORY: f64 = 1024.0;
/// Share of the time that attempts and copies may cost before they have gained any.
const LOSS: f64 = 1.0 / 100.0;
/// Factor by which the tier has to be faster to be used. It is left where it is slower.
const WORTH: f64 = 0.9;
/// Passes after which counted uses are halved.
const AGING: u32 = 256;
/// Experts of the tier that are compared when one has to make room.
const COMPARED: usize = 8;
/// Decline, with each pass, of what is known of the waiting without the tier.
const FADING: f64 = 0.999;

/// A mean over recent events.
#[derive(Clone, Copy, Debug, Default)]
struct RecentMean {
    sum: f64,
    count: f64,
}

impl RecentMean {
    fn add(&mut self, count: usize, sum: f64) {
        if self.count > MEMORY {
            self.keep(0.5);
        }
        self.sum += sum;
        self.count += count as f64;
    }

    fn keep(&mut self, share: f64) {
        self.sum *= share;
        self.count *= share;
    }

    fn mean(&self) -> f64 {
        self.sum / self.count.max(1.0)
    }
}

/// Nanoseconds of an expert: on the tier, on the CPU, and waited for.
#[derive(Clone, Copy, Debug, Default)]
struct ExpertTimes {
    there: RecentMean,
    here: RecentMean,
    waits: RecentMean,
}

impl ExpertTimes {
    /// Nanoseconds that an expert costs off the tier. The tier takes the place of as many misses at least as the other
    /// experts still have.
    fn elsewhere(&self, alone: f64) -> f64 {
        self.here.mean() + self.waits.mean().max(alone)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PlacementState {
    /// Experts of one layer are tried, and stay in memory too.
    Tried { layer: Option<u32> },
    /// Experts lie on the tier alone.
    On,
    /// The tier is idle for so many passes.
    Off { passes: u32 },
}

/// A decision about the tier at the end of a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TierChange {
    /// The tier is left idle: its experts are forgotten.
    Forget,
    /// The tier is used: its experts need no slots.
    Free,
}

/// A place on the tier for an expert.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TierPlace {
    /// A place that no expert has.
    Free,
    /// The place of another one.
    Of(PieceId),
}

/// Decides which experts lie on a tier, and whether it is used.
///
/// An attempt begins with the experts of one layer, of which memory keeps its copies, so that nothing is lost but their
/// copying. If an expert takes longer on the tier than on the CPU with its share of the waits, the tier is left idle, for
/// a break that doubles each time. Otherwise experts move to it, those that are used most, as far as copying them costs
/// less than a hundredth of the time and half of what the tier has gained.
#[derive(Debug)]
pub struct Placement {
    governed: bool,
    state: PlacementState,
    /// Length of the last break in windows.
    backoff: u32,
    passes: u32,
    /// The pass since which the tier is on.
    since: u32,
    uses: HashMap<PieceId, u32>,
    held: Vec<PieceId>,
    /// The next expert that may have to go.
    hand: usize,
    few: ExpertTimes,
    many: ExpertTimes,
    /// Nanoseconds that an expert was waited for while the tier was idle.
    alone: f64,
    copies: RecentMean,
    elapsed: f64,
    copied: f64,
    gained: f64,
    /// Nanoseconds lost by attempts.
    lost: f64,
    /// The share of the layer's misses that were there before: a tier saves no first reads.
    again: f64,
    /// True if the running layer has many rows.
    has_many: bool,
    is_used: bool,
}

impl Placement {
    /// Unless `governed`, the tier is always used.
    pub fn new(governed: bool) -> Placement {
        let tried = PlacementState::Tried { layer: None };
        Placement {
            governed,
            state: if governed { tried } else { PlacementState::On },
            backoff: 0,
            passes: 0,
            since: 0,
            uses: HashMap::new(),
            held: Vec::new(),
            hand: 0,
            few: ExpertTimes::default(),
            many: ExpertTimes::default(),
            alone: 0.0,
            copies: RecentMean::default(),
            elapsed: 0.0,
            copied: 0.0,
            gained: 0.0,
            lost: 0.0,
            again: 1.0,
            has_many: false,
            is_used: false,
        }
    }

    /// True if experts on the tier are computed there now.
    pub fn is_used(&self) -> bool {
        self.is_used
    }

    /// True unless the tier is left idle.
    pub fn is_on(&self) -> bool {
        self.state == PlacementState::On
    }

    /// The experts that the tier holds.
    pub fn held(&self) -> &[PieceId] {
        &self.held
    }

    /// Begins a pass.
    pub fn pass_begins(&mut self) {
        self.passes += 1;
        self.alone *= FADING;
        if self.passes.is_multiple_of(AGING) {
            for uses in self.uses.values_mut() {
                *uses /= 2;
            }
        }
        if let PlacementState::Off { passes } = &mut self.state {
            *passes -= 1;
            if *passes == 0 && self.lost > LOSS / 2.0 * self.elapsed {
                *passes = WINDOW;
            } else if *passes == 0 {
                self.alone = self.few.waits.mean();
                self.few = ExpertTimes::default();
                self.state = PlacementState::Tried { layer: None };
            }
        }
    }

    /// Begins a layer of a pass of so many tokens.
    pub fn layer_begins(&mut self, tokens: usize) {
        self.has_many = tokens > FEW;
        self.is_used = match self.state {
            _ if !self.governed => true,
            PlacementState::Off { .. } => false,
            PlacementState::Tried { .. } => !self.has_many,
            PlacementState::On => !self.has_many || self.pays_for_many(),
        };
    }

    /// Counts the choice of a layer's router. `missing` are those of its experts that have to be read.
    pub fn chosen(&mut self, layer: u32, experts: &[u32], missing: &[u32]) {
        let is_known = |expert: &&u32| self.uses.contains_key(&PieceId::expert(layer, **expert));
        let again = missing.iter().filter(is_known).count();
        self.again = if missing.is_empty() { 1.0 } else { again as f64 / missing.len() as f64 };
        for &expert in experts {
            *self.uses.entry(PieceId::expert(layer, expert)).or_default() += 1;
        }
    }

    /// True if rows of a prompt should go to the tier. Every now and then they do in any case, as times change.
    fn pays_for_many(&mut self) -> bool {
        let pays =
            self.many.there.count < EARLY || self.many.there.mean() <= self.many.elsewhere(0.0);
        if !pays {
            self.many.there.keep(0.99);
        }
        pays
    }

    fn times(&mut self) -> &mut ExpertTimes {
        if self.has_many { &mut self.many } else { &mut self.few }
    }

    /// Books experts that were computed on the tier, in so many nanoseconds.
    pub fn computed_there(&mut self, experts: usize, time: f64) {
        self.gained += experts as f64 * self.gain().max(0.0);
        self.times().there.add(experts, time);
    }

    /// Books experts that were computed on the CPU.
    pub fn computed_here(&mut self, experts: usize, time: f64) {
        self.times().here.add(experts, time);
    }

    /// Books the copy of an expert, and the one that it has replaced.
    pub fn copied(&mut self, expert: PieceId, place: TierPlace, time: f64) {
        self.copies.add(1, time);
        self.copied += time;
        let victim = if let TierPlace::Of(victim) = place { Some(victim) } else { None };
        self.held.retain(|held| Some(*held) != victim && *held != expert);
        self.held.push(expert);
    }

    /// Counted uses of an expert.
    fn uses_of(&self, expert: PieceId) -> u32 {
        self.uses.get(&expert).copied().unwrap_or(0)
    }

    /// Nanoseconds that an expert takes less on the tier.
    fn gain(&self) -> f64 {
        self.few.elsewhere(self.alone) - self.few.there.mean()
    }

    /// The place on the tier for an expert that was computed on the CPU; `None` if it should not move there.
    pub fn place(&mut self, expert: PieceId, has_room: bool) -> Option<TierPlace> {
        let own = f64::from(self.uses_of(expert));
        if !self.governed {
            return has_room.then_some(TierPlace::Free);
        }
        match &mut self.state {
            _ if self.copied > LOSS * self.elapsed + self.gained / 2.0 => None,
            PlacementState::Off { .. } => None,
            PlacementState::Tried { .. } if self.has_many => None,
            PlacementState::Tried { layer } => {
                let is_tried = layer.is_none() || *layer == expert.layer();
                *layer = layer.or(expert.layer());
                (is_tried && has_room).then_some(TierPlace::Free)
            }
            PlacementState::On => {
                let gain = self.gain();
                let copy = self.copies.mean();
                if has_room {
                    return (own * gain > copy).then_some(TierPlace::Free);
                }
                let places = self.held.len();
                let compared =
                    (0..COMPARED.min(places)).map(|at| self.held[(self.hand + at) % places]);
                let victim = compared.min_by_key(|id| self.uses_of(*id))?;
                self.hand = (self.hand + COMPARED) % places.max(1);
                let more = own - f64::from(self.uses_of(victim));
                (more * gain > 2.0 * copy).then_some(TierPlace::Of(victim))
            }
        }
    }

    /// Ends a layer in which so many experts were not on the tier and were waited for, `elapsed` nanoseconds after the
    /// last one or the beginning of the pass.
    pub fn layer_ends(&mut self, here: usize, waited: f64, elapsed: f64) -> Option<TierChange> {
        self.elapsed += elapsed;
        if here > 0 {
            let waited = waited * self.again;
            self.times().waits.add(here, waited);
        }
        if !self.governed || self.has_many {
            return None;
        }
        let ExpertTimes { there, here, .. } = self.few;
        let elsewhere = self.few.elsewhere(self.alone);
        let is_known = there.count >= ENOUGH && here.count >= ENOUGH;
        match self.state {
            PlacementState::Off { .. } => None,
            PlacementState::Tried { .. } => {
                let lost = there.sum - there.count * elsewhere;
                let loses = here.count >= EARLY && lost > LOSS * self.elapsed;
                if loses || is_known && there.mean() > WORTH * elsewhere {
                    return self.leave();
                }
                if is_known {
                    (self.state, self.since) = (PlacementState::On, self.passes);
                    return Some(TierChange::Free);
                }
                None
            }
            PlacementState::On if is_known && there.mean() > elsewhere => self.leave(),
            PlacementState::On => None,
        }
    }

    fn leave(&mut self) -> Option<TierChange> {
        let was_on = self.is_on() && self.passes - self.since > MAX_BACKOFF * WINDOW;
        let last = if was_on { 0 } else { self.backoff };
        self.backoff = (2 * last).clamp(1, MAX_BACKOFF);
        let ExpertTimes { there, .. } = self.few;
        let lost = there.sum - there.count * self.few.elsewhere(self.alone);
        self.lost += lost.max(0.0);
        self.state = PlacementState::Off { passes: self.backoff * WINDOW };
        self.few = ExpertTimes::default();
        self.is_used = false;
        Some(TierChange::Forget)
    }

    /// Forgets experts that the tier does not hold any more.
    pub fn keep(&mut self, is_held: impl Fn(PieceId) -> bool) {
        self.held.retain(|&expert| is_held(expert));
    }

    /// Forgets what lay on the tier.
    pub fn forget(&mut self) {
        self.held.clear();
        self.hand = 0;
    }
}

#[cfg(test)]
mod tests;
