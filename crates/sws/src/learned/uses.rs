//! Expert usage statistics of earlier runs of a model.

use std::collections::HashMap;
use std::path::PathBuf;

use sws_engine::{HitCurve, earlier_routes, routes_of};
use sws_format::{LEARNED_FILE, PieceId};

use crate::Model;

impl Model {
    /// Hit rates in earlier runs of this model, for
    /// [`Planner::set_hits`](crate::Planner::set_hits). `None` before the first run that was long
    /// enough, and for a model that visits layers several times, of which routes have the last visit.
    pub fn earlier_hits(&self) -> Option<HitCurve> {
        if self.spec().looped.is_some() {
            return None;
        }
        let file = self.learned_file()?;
        let fingerprint = &self.manifest().model.fingerprint;
        HitCurve::replayed(&earlier_routes(&file, fingerprint, routes_of(self.spec()))?)
    }

    /// File with the expert usage learned on this machine. `None` without a home directory.
    pub fn learned_file(&self) -> Option<PathBuf> {
        let cache = match std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from) {
            Some(dir) if dir.is_absolute() => dir,
            _ => std::env::home_dir()?.join(".cache"),
        };
        // A fingerprint is a safe file name: the manifest's check makes sure that it is
        // hexadecimal.
        let name = format!("{}.safetensors", self.manifest().model.fingerprint);
        Some(cache.join("sws").join("learned").join(name))
    }

    /// Experts chosen in earlier runs of this model, the most frequent first. Without such runs
    /// here, they come from the machine that published its shards. Empty if no run was long enough.
    pub fn experts_by_use(&self) -> Vec<PieceId> {
        let routes = routes_of(self.spec());
        let fingerprint = &self.manifest().model.fingerprint;
        let files = self.learned_file().into_iter().chain([self.dir().join(LEARNED_FILE)]);
        let mut earlier = files.filter_map(|file| earlier_routes(&file, fingerprint, routes));
        let Some(earlier) = earlier.next() else { return Vec::new() };
        // Routes count layers with experts only.
        let mut layers: Vec<u32> = Vec::new();
        for (index, layer) in (0..).zip(&self.spec().layers) {
            if layer.moe().is_some() {
                layers.push(index);
            }
        }
        let mut uses: HashMap<PieceId, u64> = HashMap::new();
        for token in 0..earlier.token_count() {
            for (at, &layer) in layers.iter().enumerate().take(earlier.shape().layers) {
                for &expert in earlier.experts(token, at) {
                    *uses.entry(PieceId::expert(layer, expert.into())).or_default() += 1;
                }
            }
        }
        let mut experts: Vec<(PieceId, u64)> = uses.into_iter().collect();
        experts.sort_unstable_by_key(|&(id, uses)| (std::cmp::Reverse(uses), id));
        experts.into_iter().map(|(id, _)| id).collect()
    }
}
