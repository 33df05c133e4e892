//! The prefix cache on disk, and on disks that fail.

use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use sws::{Activations, BatchRequest, Cancel, KvPrecision, Model, Options, PrefixDisk};
use sws_kernels::ARITHMETIC;
use sws_store::{BlobDevice, BlobWriter, SystemFiles};
use sws_testing::{goldens, is_night};

use super::support::{Draw, Made, assert_as_alone, load, load_with, run, step, text, texts};

#[test]
fn prefixes_on_disk_are_found_by_their_owner_and_model_alone() {
    let top = tempfile::tempdir().unwrap();
    let keys = ["secret".to_owned()];
    for name in ["qwen3_moe", "qwen3_next", "gpt_oss"] {
        let dir = top.path().join(name);
        let open = |identity: &str| {
            PrefixDisk::open(&dir, 64 << 20, &[identity.to_owned()], &keys).unwrap()
        };
        let runnable = goldens::runnable(name);
        let mut model = load(&runnable.dir, None, 2);
        let prompt: Vec<u32> = (0..90).collect();
        let mut first = text(&model, prompt.clone(), 5, 6);
        first.owner = 1;
        let mut batch = model.batch().unwrap().with_disk(open(name));
        let before = run(&mut batch, 0, first);
        while batch.store() {}
        assert!(batch.disk_counts().unwrap().written > 0, "{name}");
        drop(batch);

        let mut longer = prompt.clone();
        longer.extend(&before.tokens[..5]);
        longer.extend([7, 8, 9]);
        let mut next = text(&model, longer, 6, 6);
        next.owner = 1;
        let alone = run(&mut model.batch().unwrap(), 0, next.clone());
        let mut known = |identity, owner| {
            let text = BatchRequest { owner, ..next.clone() };
            let mut batch = model.batch().unwrap().with_disk(open(identity));
            let known = batch.add(0, text).unwrap();
            let mut made = BTreeMap::new();
            while !batch.is_empty() {
                step(&mut batch, &mut made);
            }
            assert_eq!(made[&0], alone, "{name}");
            (known.unwrap(), batch.disk_counts().unwrap().tokens)
        };
        assert_eq!(known(name, 1), (95, 95), "{name}");
        assert_eq!(known(name, 0), (0, 0), "{name}: without the key");
        assert_eq!(known("another", 1), (0, 0), "{name}: of another model");
        // A damaged file is computed again.
        for entry in dir.read_dir().unwrap().map(Result::unwrap) {
            let mut bytes = std::fs::read(entry.path()).unwrap();
            if let Some(last) = bytes.last_mut() {
                *last ^= 1;
                std::fs::write(entry.path(), bytes).unwrap();
            }
        }
        assert_eq!(known(name, 1), (0, 0), "{name}: damaged");
    }
}

/// A disk of which one operation in so many fails, or reads wrong.
#[derive(Debug)]
struct Failing {
    system: SystemFiles,
    draw: Arc<Mutex<Draw>>,
    one_in: usize,
}

impl Failing {
    fn fails(&self) -> bool {
        self.draw.lock().unwrap().below(self.one_in) == 0
    }

    fn io(&self) -> io::Result<()> {
        if self.fails() { Err(io::Error::from_raw_os_error(5)) } else { Ok(()) }
    }
}

/// A file on such a disk: it is full after some bytes, or gives other bytes.
struct FailingFile<F> {
    file: F,
    left: usize,
    flips: bool,
}

impl BlobDevice for Failing {
    fn create(&self, path: &Path) -> io::Result<Box<dyn BlobWriter>> {
        let left = if self.fails() { 5000 } else { usize::MAX };
        Ok(Box::new(FailingFile { file: self.system.create(path)?, left, flips: false }))
    }

    fn open(&self, path: &Path) -> io::Result<(Box<dyn Read>, u64)> {
        let (file, len) = self.system.open(path)?;
        self.io()?;
        let left = if self.fails() { len as usize / 2 } else { usize::MAX };
        Ok((Box::new(FailingFile { file, left, flips: self.fails() }), len))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.io()?;
        self.system.rename(from, to)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        self.system.remove(path)
    }

    fn used(&self, paths: &[PathBuf]) -> io::Result<()> {
        self.io()?;
        self.system.used(paths)
    }
}

impl Write for FailingFile<Box<dyn BlobWriter>> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.left = self.left.checked_sub(bytes.len()).ok_or(io::ErrorKind::StorageFull)?;
        self.file.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

impl BlobWriter for FailingFile<Box<dyn BlobWriter>> {
    /// A test has no need to wait for the disk.
    fn finish(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Read for FailingFile<Box<dyn Read>> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let read = self.file.read(bytes)?;
        let first = bytes[..read].first_mut().filter(|_| self.flips);
        if let Some(byte) = first {
            *byte ^= 16;
        }
        self.left = self.left.checked_sub(read).ok_or(io::ErrorKind::Other)?;
        Ok(read)
    }
}

/// Runs texts in a few servings that share a disk, each in an order of its own, and compares each text with
/// the one alone. Returns the number of faults.
fn texts_of_later_runs_are_as_alone(name: &str, kv: KvPrecision, seed: usize) -> u64 {
    let what = format!("{name}, {kv:?}");
    // Room for whole blocks.
    let model = goldens::with_context(name, 700);
    let options = Options { resident: true, kv, context: Some(640), ..Options::default() };
    let mut model = load_with(&model.dir, 4, options);
    let mut draw = Draw(7919 * seed as u64);
    let texts = texts(&mut model, &mut draw, 8);
    let again = |text: &BatchRequest| BatchRequest { cancel: Cancel::new(), ..text.clone() };
    let alone: Vec<Made> =
        texts.iter().map(|text| run(&mut model.batch().unwrap(), 0, again(text))).collect();
    let dir = tempfile::tempdir().unwrap();
    let failing = Arc::new(Mutex::new(Draw(7 + seed as u64)));
    let keys = ["secret".to_owned()];
    let (mut found, mut faults) = (0, 0);
    for run in 0..6 {
        let system = SystemFiles::beside(&dir.path().join("lock"));
        // The first two runs are without faults, so that there is something to find.
        let one_in = if run < 2 { usize::MAX } else { 12 };
        let device = Failing { system, draw: Arc::clone(&failing), one_in };
        let disk =
            PrefixDisk::open_on(dir.path(), 3 << 20, &[name.to_owned()], &keys, Box::new(device));
        let mut batch = model.batch().unwrap().with_disk(disk.unwrap());
        let (mut made, mut next) = (BTreeMap::new(), 0);
        let order: Vec<usize> = (0..texts.len()).filter(|_| draw.below(3) > 0).collect();
        while next < order.len() || !batch.is_empty() {
            if next < order.len() && batch.has_room(false) && draw.below(2) == 0 {
                let text = again(&texts[order[next]]);
                if draw.below(6) == 0 {
                    text.cancel.cancel();
                }
                batch.add(order[next], text).unwrap();
                next += 1;
            }
            step(&mut batch, &mut made);
            if draw.below(20) == 0 {
                batch.store();
            }
        }
        while batch.store() {}
        for number in order {
            let has_ranks = texts[number].ranks.is_some();
            let what = format!("{what}: the text {number} of the run {run}");
            assert_as_alone(&made[&number], &alone[number], has_ranks, &what);
        }
        let counts = batch.disk_counts().unwrap();
        assert!(counts.bytes <= 3 << 20, "{what}: {counts:?}");
        found += counts.tokens;
        faults += counts.faults;
    }
    assert!(found > 0, "{what}: nothing was found");
    faults
}

#[test]
fn texts_that_begin_as_those_on_a_failing_disk_are_as_alone() {
    let kinds = [
        // Keys and values of all positions, of windows, of blocks, shared by layers.
        "qwen3_moe",
        "gpt_oss",
        "minimax_m3",
        "gemma4_text",
        // Latents, with an indexer.
        "deepseek_v3",
        "deepseek_v32",
        // Entries that positions are pooled into, with an indexer.
        "deepseek_v4",
        // States of fixed size: sums, inputs of convolutions, both; beside keys and values, or latents.
        "qwen3_next",
        "lfm2_moe",
        "nemotron_h",
        "kimi_k3",
        "inkling",
        "glm5_next",
        "inkling2",
        "inkling2_loop",
        // Latents of earlier layers.
        "mistral_large4",
    ];
    let mut faults = 0;
    for (name, seed) in kinds.into_iter().zip(1..) {
        for (number, kv) in KvPrecision::ALL.into_iter().enumerate() {
            if number == seed % 3 || is_night() {
                faults += texts_of_later_runs_are_as_alone(name, kv, seed + 100 * number);
            }
        }
    }
    assert!(faults > if is_night() { 40 } else { 13 }, "{faults} faults");
}

#[test]
fn another_model_program_arithmetic_or_precision_is_another_identity() {
    let copy = goldens::with_context("qwen3_moe", 256);
    let identity = |options: &Options| {
        PrefixDisk::identity(&Model::open(&copy.dir).unwrap(), options).unwrap()
    };
    let options = Options::default();
    let first = identity(&options);
    assert_eq!(identity(&options), first);
    let arithmetic = format!(", arithmetic {ARITHMETIC}");
    assert!(first.iter().any(|part| part.ends_with(&arithmetic)), "{first:?}");
    // What changes no number changes no name.
    let same = Options { resident: true, context: Some(100), ..options.clone() };
    assert_eq!(identity(&same), first);
    let [_, rounded @ ..] = KvPrecision::ALL.map(|kv| identity(&Options { kv, ..options.clone() }));
    assert!(rounded[0] != first && rounded[1] != first && rounded[0] != rounded[1]);
    let rounded = Options { activations: Activations::Int8, ..options.clone() };
    assert_ne!(identity(&rounded), first);
    let mut lossy = options.clone();
    lossy.streaming.tolerance = 0.1;
    assert_ne!(identity(&lossy), first);
    // Any byte of a weight file, with the length and the time of change that it had.
    let path = copy.dir.join("model.safetensors");
    let mut bytes = std::fs::read(&path).unwrap();
    let modified = path.metadata().unwrap().modified().unwrap();
    let last = bytes.len() - 1;
    bytes[last] ^= 1;
    std::fs::write(&path, bytes).unwrap();
    std::fs::File::open(&path).unwrap().set_modified(modified).unwrap();
    assert_ne!(identity(&options), first);
}
