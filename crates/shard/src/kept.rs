//! Shards left by an earlier call. Intact shards are kept, and the others are made again.

use std::collections::HashSet;
use std::io::Read;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use serde::{Deserialize, Serialize};
use sws_format::{
    InvalidManifest, MANIFEST_FILE, Manifest, ManifestError, Progress, Tensor, open_regular,
};
use sws_kernels::Encoding;

use super::direct::ALIGN;
use super::journal::Journal;
use super::plan::ShardJob;
use super::verify::{self, Shard};
use super::{ShardError, ShardOptions, begins_with, layout};

/// Identifies the job that a journal belongs to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct ShardIdentity {
    version: u32,
    fingerprint: String,
    pub(super) encoding: String,
    stand_ins: Option<String>,
    shards: usize,
}

impl ShardIdentity {
    pub(super) fn of(
        source: &Manifest,
        options: &ShardOptions,
        jobs: &[ShardJob],
    ) -> ShardIdentity {
        ShardIdentity {
            version: 2,
            fingerprint: source.model.fingerprint.clone(),
            encoding: options.encoding.name().to_owned(),
            stand_ins: options.stand_ins.map(|e| e.name().to_owned()),
            shards: jobs.len(),
        }
    }
}

/// A journal line: a finished shard.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct JournalLine {
    pub(super) index: usize,
    pub(super) len: u64,
    pub(super) tensors: Vec<Tensor>,
}

impl JournalLine {
    /// True if the extents of this line can be used to read a shard. A foreign journal may contain
    /// other lines.
    fn can_be_read(&self) -> bool {
        let mut parts = self.tensors.iter().flat_map(|tensor| &tensor.parts);
        parts.all(|part| part.file as usize == self.index && part.check_len > 0)
    }
}

/// Finished shards of an earlier call.
pub(super) struct FinishedShards {
    /// For each job, its journal line if the shard exists and is intact.
    pub(super) lines: Vec<Option<JournalLine>>,
    /// Files that are missing or damaged.
    pub(super) damaged: usize,
}

/// State of an output directory before any work.
pub(super) enum OutputState {
    /// The same job was completed, and has this manifest.
    Complete(Manifest),
    /// The same job left shards, and a damaged manifest or journal.
    Unreadable,
    /// Nothing, unfinished work with a journal, or foreign files.
    Other,
}

/// Determines the state of an output directory.
pub(super) fn look(
    out: &Path,
    identity: &ShardIdentity,
    jobs: &[ShardJob],
) -> Result<OutputState, ShardError> {
    let begins = |job: &&ShardJob| {
        let start = layout::beginning(job.piece.id, &identity.fingerprint, job.data_start);
        begins_with(&out.join(&job.file), &start)
    };
    // Shards in other encodings begin with the same bytes, and must not be mistaken for damaged
    // ones. Some pieces are stored alike in several encodings.
    let has_shards = || {
        let shards: Vec<&ShardJob> = jobs.iter().filter(begins).collect();
        let alike = shards.iter().filter(|job| has_encodings(&out.join(&job.file), job)).count();
        2 * alike > shards.len()
    };
    if !out.join(MANIFEST_FILE).exists() {
        let begun = Journal::begun(out);
        return Ok(if !begun && has_shards() {
            OutputState::Unreadable
        } else {
            OutputState::Other
        });
    }
    let manifest = match Manifest::read(out) {
        Ok(manifest) => manifest,
        Err(ManifestError::Invalid { reason, .. })
            if !matches!(reason, InvalidManifest::Version(_))
                && (Journal::begun(out) || has_shards()) =>
        {
            return Ok(OutputState::Unreadable);
        }
        Err(error) => return Err(error.into()),
    };
    let stand_ins = manifest.pieces.iter().find_map(|p| p.stand_in.as_ref()).map(|s| s.encoding);
    let wanted_stand_ins = jobs.iter().find_map(|job| job.stand_in);
    let same = manifest.model.fingerprint == identity.fingerprint
        && manifest.encoding.is_some_and(|e| e.name() == identity.encoding)
        && stand_ins == wanted_stand_ins;
    match same {
        true => Ok(OutputState::Complete(manifest)),
        false => Err(ShardError::OtherJob { dir: out.to_owned() }),
    }
}

/// True if a shard has about the length of a job, and its header has the planned parts of tensors.
fn has_encodings(path: &Path, job: &ShardJob) -> bool {
    let mut header = Vec::new();
    let opened = open_regular(path).and_then(|file| {
        let len = file.metadata()?.len();
        file.take(job.data_start).read_to_end(&mut header)?;
        Ok(len)
    });
    let header = String::from_utf8_lossy(&header);
    let count = |name: &str| header.matches(name).count();
    let is_stored = |tensor: &Tensor, encoding: Option<Encoding>| {
        let stored = Tensor { encoding, ..tensor.clone() };
        let parts = encoding.map_or(1, |encoding| encoding.parts().len()).max(stored.parts.len());
        let has = |index| count(&format!("\"{}\":", layout::part_name(&stored, index))) == 1;
        (0..parts).all(has) && count(&format!("\"{}", tensor.name)) == parts
    };
    // A lossless encoding is stored unchanged where it gains nothing.
    let may_stay = |planned: Option<Encoding>| planned.is_none_or(|it| !it.is_lossy());
    let fits = |(tensor, &planned): (&Tensor, &Option<Encoding>)| {
        is_stored(tensor, planned) || may_stay(planned) && is_stored(tensor, tensor.encoding)
    };
    // Patches take a small share, and gaps at most a block each.
    let slack = job.len / 32 + 2 * ALIGN as u64;
    let unpacked = job.len.max(job.data_start.saturating_add(job.source_len));
    let lens = job.len.saturating_sub(slack)..=unpacked.saturating_add(slack);
    let mut tensors = job.piece.tensors.iter().zip(&job.encodings);
    opened.is_ok_and(|len| lens.contains(&len)) && tensors.all(fits)
}

/// Verifies the shards and small files of a complete directory.
pub(super) fn of_manifest(
    manifest: &Manifest,
    out: &Path,
    jobs: &[ShardJob],
    progress: &(dyn Fn(Progress) + Sync),
) -> Result<FinishedShards, ShardError> {
    let verified = verify::verify_by(manifest, out, progress)?;
    let damaged: HashSet<&str> = verified.damage.iter().map(|damage| &*damage.file).collect();
    let line = |(index, job): (usize, &ShardJob)| {
        let file = manifest.files.get(index).filter(|file| file.path == job.file)?;
        let piece = manifest.piece(job.piece.id)?;
        let tensors = match job.stand_in {
            Some(_) => &piece.stand_in.as_ref()?.tensors,
            None => &piece.tensors,
        };
        let intact = !damaged.contains(&*file.path);
        intact.then(|| JournalLine { index, len: file.len, tensors: tensors.clone() })
    };
    Ok(FinishedShards {
        lines: jobs.iter().enumerate().map(line).collect(),
        damaged: damaged.len(),
    })
}

/// Verifies the shards that a journal lists.
pub(super) fn of_journal(
    listed: Vec<JournalLine>,
    out: &Path,
    (identity, jobs): (&ShardIdentity, &[ShardJob]),
    progress: &(dyn Fn(Progress) + Sync),
) -> Result<FinishedShards, ShardError> {
    let mut lines: Vec<Option<JournalLine>> = jobs.iter().map(|_| None).collect();
    // The journal has two lines for a shard that was made again.
    for line in listed.into_iter().filter(JournalLine::can_be_read) {
        if let Some(place) = lines.get_mut(line.index) {
            *place = Some(line);
        }
    }
    let shards: Vec<Shard> = lines
        .iter()
        .flatten()
        .map(|line| {
            let ShardJob { file, piece, data_start, .. } = &jobs[line.index];
            let len = line.len;
            let tensors = &line.tensors;
            Shard { path: file, len, piece: piece.id, data_start: *data_start, tensors }
        })
        .collect();
    let total = shards.iter().map(|shard| shard.len).fold(0, u64::saturating_add);
    let done = AtomicU64::new(0);
    let report = |bytes: u64| {
        let done = done.fetch_add(bytes, Ordering::Relaxed) + bytes;
        progress(Progress { done, total });
    };
    let found = verify::check(&shards, out, &identity.fingerprint, &report)?;
    let indices: Vec<usize> = lines.iter().flatten().map(|line| line.index).collect();
    let mut damaged: Vec<usize> = found.iter().map(|(shard, _)| indices[*shard]).collect();
    damaged.dedup();
    for &index in &damaged {
        lines[index] = None;
    }
    Ok(FinishedShards { lines, damaged: damaged.len() })
}
