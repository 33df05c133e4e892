//! The identity of a manifest's weights, and the state of their files.

use std::io::{self, BufWriter, Write};
use std::path::Path;

use sws_os::identity::FileIdentity;

use super::Manifest;

impl Manifest {
    /// A hash of the whole manifest: the identity of the model, the layout of its pieces, and the
    /// checksums of shards. Files of a checkpoint in place have no checksums, so their lengths and
    /// modification times in the directory `in_place` are hashed instead.
    ///
    /// Equal hashes mean equal weights. A copy of a checkpoint has another hash.
    pub fn state(&self, in_place: Option<&Path>) -> io::Result<String> {
        let mut hasher = blake3::Hasher::new();
        let mut json = BufWriter::new(&mut hasher);
        serde_json::to_writer(&mut json, self).map_err(io::Error::other)?;
        json.flush()?;
        drop(json);
        if let Some(dir) = in_place {
            for file in &self.files {
                let about = FileIdentity::at(&dir.join(&file.path))?;
                let FileIdentity { len, modified, changed, .. } = about;
                hasher.update(&len.to_le_bytes());
                for time in [modified.0, modified.1, changed.0, changed.1] {
                    hasher.update(&time.to_le_bytes());
                }
            }
        }
        Ok(hasher.finalize().to_hex().to_string())
    }
}
