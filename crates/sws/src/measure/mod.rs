//! Brief measurements of a machine's speed, for estimates.

mod attending;
mod blank;
mod computing;
mod others;

use std::path::Path;

use rayon::prelude::*;
use sws_format::{Clock, Manifest};
use sws_store::{Arena, ReaderKind, probe};

use crate::{Model, Threads};
pub use attending::PromptComputing;
pub use computing::{Computing, Dry};
pub use others::Others;

/// Bytes read to measure the speed of memory: more than processor caches hold.
const MEMORY_PROBE: usize = 128 << 20;

/// Speed at which a reader reads the files of a manifest below `dir`, in bytes per second. It takes
/// at most about 0.3 s.
pub fn disk_speed(manifest: &Manifest, dir: &Path, reader: ReaderKind) -> Option<f64> {
    let figures = probe(manifest, dir, &Clock::real(), Some(reader)).figures.into_iter();
    figures.map(|figure| figure.bytes_per_second).max_by(f64::total_cmp)
}

/// Speed at which the drives of a model read together, in bytes per second: the sum, or as fast as the
/// model's own reads what no copy has.
pub fn drives_speed(model: &Model, reader: ReaderKind) -> Option<f64> {
    let manifest = model.manifest();
    let own = disk_speed(manifest, model.dir(), reader)?;
    let total: u64 = manifest.files.iter().map(|file| file.len).sum();
    let mut held = 0;
    let mut sum = own;
    for mirror in model.mirrors() {
        let files = mirror.held(manifest).cloned().collect();
        let model = manifest.model.clone();
        let part = Manifest { model, encoding: None, files, pieces: vec![], copies: vec![] };
        if let Some(speed) = disk_speed(&part, &mirror.dir, reader) {
            held = mirror.bytes.max(held);
            sum += speed;
        }
    }
    let elsewhere = held as f64 / total.max(1) as f64;
    Some(sum.min(own / (1.0 - elsewhere).max(f64::MIN_POSITIVE)))
}

/// Speed at which all threads together read memory, in bytes per second.
pub fn memory_speed(threads: &Threads) -> Option<f64> {
    let clock = Clock::real();
    let arena = Arena::new(MEMORY_PROBE).ok()?;
    let mut slot = arena.take(MEMORY_PROBE)?;
    slot.fill(1);
    let part = slot.len() / threads.count();
    threads.run(|| {
        let speeds = (0..5).map(|_| {
            let started = clock.now();
            let sum = slot.par_chunks(part).map(sum_of_words).reduce(|| 0, u64::wrapping_add);
            std::hint::black_box(sum);
            slot.len() as f64 / (clock.now() - started).as_secs_f64()
        });
        speeds.max_by(f64::total_cmp)
    })
}

fn sum_of_words(bytes: &[u8]) -> u64 {
    let words = bytes.as_chunks::<8>().0.iter().map(|word| u64::from_le_bytes(*word));
    words.fold(0, u64::wrapping_add)
}
