//! Recorded states, read one token at a time, as they may be far larger than memory.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use anyhow::{anyhow, bail};
use serde_json::Value;
use sws_cache::Trace;
use sws_draft::DraftShape;
use sws_format::{Header, open_regular};

/// Size limit of a recording's header.
const MAX_HEADER: u64 = 1 << 20;
/// Size limit of a recording without its states.
const MAX_ROUTES: u64 = 1 << 30;

/// A recording: routes in memory, states on disk.
pub(crate) struct RecordedStates {
    path: PathBuf,
    file: File,
    pub(crate) trace: Trace,
    /// Offsets of `hidden`, `attended` and, if the model has shared experts, `routed` in the file.
    /// `row` is the size of a token in each of them.
    starts: Vec<u64>,
    row: u64,
    bytes: Vec<u8>,
}

/// Consecutive tokens of a recording.
#[derive(Clone, Debug)]
pub(crate) struct RecordedSequence {
    /// Index of the recording.
    pub(crate) file: usize,
    pub(crate) tokens: std::ops::Range<usize>,
}

impl RecordedStates {
    /// Opens a recording made by `sws run --record --record-hidden` of a model with this shape and
    /// number of layers.
    pub(crate) fn open(
        path: &Path,
        shape: &DraftShape,
        layers: usize,
    ) -> anyhow::Result<RecordedStates> {
        let name = path.display();
        let unread = |e: std::io::Error| anyhow!("`{name}` cannot be read: {e}; name a recording");
        let again = "record it with `sws run --record FILE --record-hidden`";
        let mut file = open_regular(path).map_err(unread)?;
        let about = file.metadata().map_err(unread)?;
        let mut first = [0; 8];
        if file.read_exact(&mut first).is_err() {
            bail!("`{name}` is not a recording; {again}");
        }
        let header = u64::from_le_bytes(first);
        if header > MAX_HEADER || header + 8 > about.len() {
            bail!("`{name}` is not a recording; {again}");
        }
        let mut json = vec![0; header as usize];
        file.read_exact(&mut json).map_err(unread)?;
        let tensors: serde_json::Result<serde_json::Map<String, Value>> =
            serde_json::from_slice(&json);
        let Ok(mut tensors) = tensors else { bail!("`{name}` is not a recording; {again}") };

        let mut starts = Vec::new();
        let row = (layers * shape.hidden * 4) as u64;
        let mut end = about.len() - 8 - header;
        let mut tokens = None;
        // The states follow everything else, in this order.
        for name_of in ["routed", "attended", "hidden"] {
            let entry = tensors.remove(name_of);
            if entry.is_none() && name_of == "routed" {
                continue;
            }
            let states = entry.as_ref().and_then(|entry| {
                let count = entry["shape"][0].as_u64()?;
                let right = entry["dtype"] == "F32"
                    && entry["shape"]
                        == Value::from(vec![count, layers as u64, shape.hidden as u64])
                    && tokens.is_none_or(|tokens| tokens == count);
                let from = end.checked_sub(count.checked_mul(row)?)?;
                let right = right && entry["data_offsets"] == Value::from(vec![from, end]);
                right.then_some((count, from))
            });
            let Some((count, from)) = states else {
                bail!(
                    "`{name}` has no `{name_of}` of this model after its routes; {again}, without \
                     --backend"
                );
            };
            tokens = Some(count);
            end = from;
            starts.insert(0, 8 + header + from);
        }
        if end > MAX_ROUTES {
            bail!("`{name}` has too many routes; record fewer tokens at a time");
        }
        // The remaining tensors form a trace.
        let mut bytes = Header::framed(serde_json::to_vec(&tensors)?, 1);
        Read::by_ref(&mut file).take(end).read_to_end(&mut bytes).map_err(unread)?;
        let trace = Trace::read(&bytes).map_err(|e| anyhow!("`{name}` {e}"))?;
        let found = trace.shape();
        let wanted = (shape.layers.len(), shape.experts, shape.top_k);
        if (found.layers, found.experts, found.top_k) != wanted
            || tokens != Some(trace.token_count() as u64)
            || trace.tokens().len() != trace.token_count()
        {
            bail!("`{name}` is a recording of another model; {again}");
        }
        Ok(RecordedStates { path: path.to_owned(), file, trace, starts, row, bytes: Vec::new() })
    }

    /// Replaces `states` with those of a token, [2 or 3, layers, hidden]: the inputs of the layers,
    /// those of their routers with the output of shared experts and, where there are some, without.
    pub(crate) fn token(&mut self, token: usize, states: &mut Vec<f32>) -> anyhow::Result<()> {
        states.clear();
        self.bytes.resize(self.row as usize, 0);
        for start in &self.starts {
            let at = start + token as u64 * self.row;
            if let Err(e) = read_at(&mut self.file, at, &mut self.bytes) {
                bail!("`{}` cannot be read: {e}; record it again", self.path.display());
            }
            states.extend(self.bytes.as_chunks().0.iter().copied().map(f32::from_le_bytes));
        }
        Ok(())
    }
}

fn read_at(file: &mut File, at: u64, bytes: &mut [u8]) -> std::io::Result<()> {
    file.seek(SeekFrom::Start(at))?;
    file.read_exact(bytes)
}
