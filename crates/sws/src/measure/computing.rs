//! Measures how long this machine computes a token of a model, without its weights.

use sws_engine::PerToken;
use sws_format::{Clock, Manifest, PieceKind};
use sws_kernels::Tier;
use sws_model::{CausalLm, Inventory, KvPrecision, ModelSpec, Session};
use sws_store::{Arena, Slot};

use super::blank::{Blank, BlankMemory, needs_powers};
use crate::Threads;

/// Memory of the placeholder weights: far more than processor caches hold.
const MEMORY: usize = 256 << 20;
/// Maximum memory for one matrix that is larger than that.
const MOST: usize = 1 << 30;
/// Minimum bytes of weights in the computed layers, if the model has as many.
const BYTES: u64 = 256 << 20;
/// Minimum and maximum number of passes of a measurement.
const PASSES: [usize; 2] = [5, 48];
const PATIENCE: f64 = 0.06;
/// Computes tokens of models without their weights. Placeholders stand in for the weights, on the
/// kernels and threads of a run. The time does not depend on the values, as long as they are
/// numbers of moderate size.
#[derive(Debug)]
pub struct Dry<'t> {
    pub(super) threads: &'t Threads,
    pub(super) tier: Tier,
    zeros: Slot,
    /// Memory for the encodings that need powers, as long as the zeros; empty before the first of
    /// them.
    powers: Option<Slot>,
}

/// Measured time of computing a token, from weights in memory.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Computing {
    pub(super) seconds: f64,
    /// Bytes of the weights used in the computation.
    pub(super) active: u64,
}

impl<'t> Dry<'t> {
    /// Takes 256 MiB of memory, and returns `None` if there is less. Models with some formats take as much
    /// again.
    pub fn new(tier: Tier, threads: &'t Threads) -> Option<Dry<'t>> {
        Some(Dry { threads, tier, zeros: filled(MEMORY, 0)?, powers: None })
    }

    /// Measures the time of a token in about 60 milliseconds. Of a large model, only the first
    /// layers are computed: those with about 256 MiB of weights in use, and at least one layer with
    /// experts. All layers are computed if layers have inputs of their own. `None` for a model with
    /// a matrix above 1 GiB.
    pub fn token(&mut self, spec: &ModelSpec, manifest: &Manifest) -> Option<Computing> {
        self.passes(spec, manifest, 1, PASSES)
    }

    /// Measures passes of `tokens` tokens, with a minimum and a maximum number of passes.
    pub(super) fn passes(
        &mut self,
        spec: &ModelSpec,
        manifest: &Manifest,
        tokens: usize,
        [least, most]: [usize; 2],
    ) -> Option<Computing> {
        let ComputedLayers { spec, active, longest, is_whole } =
            ComputedLayers::of(spec, manifest)?;
        if longest > self.zeros.len() {
            if longest > MOST {
                return None;
            }
            self.zeros = filled(longest, 0)?;
        }
        let inventory = Inventory::new(&spec, manifest).ok()?;
        let mut held = manifest.pieces.iter().flat_map(|piece| inventory.piece(piece.id));
        if held.any(|held| needs_powers(held.encoding))
            && self.powers.as_ref().is_none_or(|powers| powers.len() < self.zeros.len())
        {
            self.powers = Some(filled(self.zeros.len(), BlankMemory::POWER)?);
        }
        let powers = self.powers.as_deref().unwrap_or_default();
        let memory = BlankMemory { zeros: &self.zeros, powers };
        let weights = Blank::new((&spec, &inventory), manifest, memory, is_whole);
        let model = sws_model::ForwardPass::with_tier(spec, self.tier);
        let positions = tokens * (most + 1);
        let mut session = Session::new(model, weights, positions, KvPrecision::F32);
        let tokens = vec![0; tokens.min(session.limit())];
        let clock = Clock::real();
        let seconds = self.threads.run(|| {
            // The first pass allocates the buffers.
            session.prefill(&tokens).ok()?;
            let began = clock.now();
            let mut times = Vec::new();
            while times.len() < least
                || times.len() < most && (clock.now() - began).as_secs_f64() < PATIENCE
            {
                if session.len() + tokens.len() > session.limit() {
                    session.clear();
                }
                let started = clock.now();
                session.prefill(&tokens).ok()?;
                times.push((clock.now() - started).as_secs_f64());
            }
            times.sort_by(f64::total_cmp);
            Some(times[times.len() / 2])
        })?;
        Some(Computing { seconds, active })
    }
}

impl Computing {
    /// Seconds of computing a token of the measured model.
    pub fn seconds(&self, token: &PerToken) -> f64 {
        self.seconds * token.active as f64 / self.active.max(1) as f64
    }
}

/// The part of a model that is computed: some of its layers, or all of them and the head.
struct ComputedLayers {
    spec: ModelSpec,
    /// Bytes of the weights that a token uses in these layers, and of the longest part of a matrix.
    active: u64,
    longest: usize,
    /// True if all layers and the head are computed.
    is_whole: bool,
}

impl ComputedLayers {
    fn of(spec: &ModelSpec, manifest: &Manifest) -> Option<ComputedLayers> {
        let mut layers = vec![0.0; spec.layers.len()];
        let mut head = 0;
        for piece in &manifest.pieces {
            let bytes = piece.stored_bytes();
            match (piece.id.layer(), piece.id.kind()) {
                (Some(layer), kind) => {
                    let layer = layer as usize;
                    let Some(sum) = layers.get_mut(layer) else { continue };
                    let Some(spec) = spec.layers.get(layer) else { continue };
                    *sum += match (kind, spec.moe()) {
                        // Only a few rows of a table are looked up.
                        (PieceKind::Table(_), _) => 0.0,
                        (PieceKind::Expert(_), Some(moe)) => {
                            bytes as f64 * moe.top_k as f64 / moe.experts as f64
                        }
                        _ => bytes as f64,
                    };
                }
                (None, PieceKind::Embed) if !spec.tied => {}
                (None, _) => head += bytes,
            }
        }
        let mut count = 0;
        let mut active = 0;
        let has_experts = spec.moes().next().is_some();
        // The input matrix of the first layers alone would be smaller.
        let needs_all = spec.layer_inputs.is_some();
        while count < layers.len() {
            let found = spec.layers[..count].iter().any(|layer| layer.moe().is_some());
            if !needs_all && active >= BYTES && found == has_experts {
                break;
            }
            active += layers[count] as u64;
            count += 1;
        }
        let is_whole = count == layers.len() && head <= BYTES;
        let mut spec = spec.clone();
        spec.layers.truncate(count);
        // Layers that a pass visits several times count as often in what is computed for a token.
        spec.looped = None;
        let mut longest: Option<u64> = None;
        for piece in &manifest.pieces {
            let is_computed = match (piece.id.layer(), piece.id.kind()) {
                (_, PieceKind::Table(_)) => false,
                (Some(layer), _) => (layer as usize) < count,
                (None, kind) => is_whole && (spec.tied || kind != PieceKind::Embed),
            };
            if is_computed {
                for extent in piece.tensors.iter().flat_map(|tensor| &tensor.parts) {
                    longest = longest.max(Some(extent.len));
                }
            }
        }
        let longest = usize::try_from(longest?).ok()?;
        let active = active + if is_whole { head } else { 0 };
        Some(ComputedLayers { spec, active, longest, is_whole })
    }
}

/// Memory filled with one byte.
fn filled(len: usize, byte: u8) -> Option<Slot> {
    let mut slot = Arena::new(len).ok()?.take(len)?;
    slot.fill(byte);
    Some(slot)
}

#[cfg(test)]
mod tests {
    use std::path::{Path, PathBuf};

    use sws_kernels::Encoding;
    use sws_testing::{each_nth, is_night};

    use super::*;
    use crate::{Format, Outline};

    fn outline(path: &Path) -> Option<(Outline, Format)> {
        let outline = Outline::read(path).ok()?;
        let format = outline.format(Encoding::Q4)?;
        Some((outline, format))
    }

    #[test]
    fn tokens_of_all_families_are_computed_without_weights() {
        let threads = Threads::start(2).unwrap();
        let mut dry = Dry::new(Tier::best(), &threads).unwrap();
        let configs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../configs");
        let configs = configs.read_dir().unwrap().map(|config| config.unwrap().path());
        let mut configs: Vec<PathBuf> = configs.collect();
        configs.sort();
        let mut count = 0;
        for path in each_nth(configs, 3) {
            // Some were published without all that a model needs.
            let Some((outline, format)) = outline(&path) else { continue };
            count += 1;
            let computing = outline.computing(format, &mut dry);
            let computing = computing.unwrap_or_else(|| panic!("{}", path.display()));
            assert!(computing.seconds > 0.0 && computing.active > 0, "{}", path.display());
            for times in [1, 2] {
                let active = times * computing.active;
                let found = computing.seconds(&PerToken { active, ..PerToken::default() });
                let expected = times as f64 * computing.seconds;
                assert!((found / expected - 1.0).abs() < 1e-9, "{found} s, not {expected}");
            }
        }
        assert!(count >= if is_night() { 65 } else { 20 }, "{count} of the configurations");
    }

    #[test]
    fn a_small_model_is_computed_whole_and_a_large_one_in_part() {
        let tales = crate::Model::open(sws_testing::tales()).unwrap();
        let whole = ComputedLayers::of(tales.spec(), tales.manifest()).unwrap();
        assert!(whole.is_whole && whole.spec == *tales.spec());
        let configs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../configs");
        let (outline, format) = outline(&configs.join("deepseek-v3.json")).unwrap();
        let spec = outline.spec().unwrap();
        let manifest = spec.outline(|kind| format.of(kind)).unwrap();
        let part = ComputedLayers::of(spec, &manifest).unwrap();
        // The first layers are dense.
        assert!(!part.is_whole && part.spec.moes().count() >= 1, "{:?}", part.spec.layers.len());
        assert!(part.active >= BYTES && part.spec.layers.len() < 12, "{}", part.active);
    }
}
