//! Sketches of GGUF files, which have the length of the file, but only its header and smallest
//! tensors. A sketch allows planning before the model is downloaded.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use sws_format::{Gguf, GgufError};
use sws_os::file::write_all_at;

use crate::client::{FileAddress, RequestSubject};
use crate::http::HttpFailure;
use crate::{Client, HubError, HubFile, Listing};

/// Bytes per request. Headers with a vocabulary have up to 16 MB, others much less.
const STEP: u64 = 2 << 20;

impl Client {
    /// Writes the sketches of a GGUF model's files to `dir`. Returns the path of the first one.
    pub fn sketch_gguf(
        &self,
        listing: &Listing,
        files: &[HubFile],
        dir: &Path,
    ) -> Result<Option<PathBuf>, HubError> {
        let mut first = None;
        for file in files {
            let path = dir.join(file.last_name());
            self.sketch_one(listing, file, &path)?;
            first = first.or(Some(path));
        }
        Ok(first)
    }

    fn sketch_one(&self, listing: &Listing, file: &HubFile, path: &Path) -> Result<(), HubError> {
        let out = File::create_new(path).map_err(HubError::writing(path))?;
        out.set_len(file.len).map_err(HubError::writing(path))?;
        let address = self.file(&listing.id, &listing.commit, &file.name);
        let about = RequestSubject::of(listing, file, false);
        let mut beginning = PartialFile {
            client: self,
            address,
            file,
            out: &out,
            chunk: Vec::new(),
            used: 0,
            next: 0,
            failure: None,
        };
        let read = Gguf::read(&mut beginning, file.len, |_| false);
        let PartialFile { mut address, failure, next, .. } = beginning;
        if let Some(failure) = failure {
            return Err(self.explained(failure, &about));
        }
        let header = match read {
            Ok(header) => header,
            Err(GgufError::Read(cause)) => return Err(HubError::write(path, cause)),
            Err(reason) => {
                let file = &file.name;
                let problem = format!("has a file {file:?} that cannot be used: it {reason}");
                return Err(listing.contents_error(problem));
            }
        };
        // Tensors after the header that belong to the configuration.
        for tensor in header.tensors.iter().filter(|tensor| tensor.is_configuration()) {
            let end = tensor.offset + tensor.len;
            if end <= next {
                continue;
            }
            let bytes = self.range(&mut address, file, tensor.offset..end);
            let bytes = bytes.map_err(|failure| self.explained(failure, &about))?;
            write_all_at(&out, &bytes, tensor.offset).map_err(HubError::writing(path))?;
        }
        Ok(())
    }
}

/// The beginning of a file, which is downloaded while it is read.
struct PartialFile<'a> {
    client: &'a Client,
    address: FileAddress,
    file: &'a HubFile,
    /// The sketch that is being written.
    out: &'a File,
    /// The bytes of the last request, and the number of them that were read.
    chunk: Vec<u8>,
    used: usize,
    /// Offset of the next request.
    next: u64,
    /// The error that ended the download.
    failure: Option<HttpFailure>,
}

impl Read for PartialFile<'_> {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        let end = self.next.saturating_add(STEP).min(self.file.len);
        if self.used == self.chunk.len() && self.next < end {
            match self.client.range(&mut self.address, self.file, self.next..end) {
                Ok(chunk) => {
                    write_all_at(self.out, &chunk, self.next)?;
                    (self.chunk, self.used, self.next) = (chunk, 0, end);
                }
                Err(failure) => {
                    self.failure = Some(failure);
                    return Err(io::Error::other("the download has ended"));
                }
            }
        }
        let n = (&self.chunk[self.used..]).read(to)?;
        self.used += n;
        Ok(n)
    }
}
