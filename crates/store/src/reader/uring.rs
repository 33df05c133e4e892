//! Reads through io_uring that bypass the page cache.

use std::io::{self, Write};
use std::os::fd::AsRawFd;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use io_uring::{IoUring, opcode, types};
use sws_format::{Manifest, ReadOp, ShardReader};

use super::direct::DirectReader;
use super::files::OpenFile;

/// Consecutive failures to enter a ring, without a completed read in between, after which the ring
/// is considered lost.
const MOST_REFUSALS: u32 = 1 << 20;

/// Keeps several reads in flight from one thread through io_uring, on files that accept direct
/// reads. Other files are read as by [`DirectReader`].
pub struct UringReader {
    direct: DirectReader,
    batch: usize,
    /// Rings that no thread is using.
    rings: Mutex<Vec<IoUring>>,
}

impl UringReader {
    /// Creates a reader of the files of `manifest`, which lie below `dir`, with `depth` reads in
    /// flight. Each of two threads has half of them, so that one batch is on the device while the
    /// other is verified.
    pub fn new(manifest: &Manifest, dir: &Path, depth: usize) -> io::Result<UringReader> {
        UringReader::over(DirectReader::new(manifest, dir), depth)
    }

    /// Like [`new`](Self::new), of the files of another reader.
    pub(super) fn over(direct: DirectReader, depth: usize) -> io::Result<UringReader> {
        let batch = depth.max(1).div_ceil(2);
        // The first ring is created now, so that a system without io_uring is an error before
        // anything is read.
        let ring = Self::ring(batch)?;
        Ok(UringReader { direct, batch, rings: Mutex::new(vec![ring]) })
    }

    fn ring(batch: usize) -> io::Result<IoUring> {
        IoUring::new(u32::try_from(batch.next_power_of_two()).unwrap_or(1024))
    }

    fn submit(&self, ring: &mut IoUring, reads: &mut [ReadOp<'_>], files: &[Arc<OpenFile>]) {
        let mut waiting = 0;
        for (index, (read, file)) in reads.iter_mut().zip(files).enumerate() {
            let len = u32::try_from(read.into.len()).unwrap_or(u32::MAX);
            let fd = types::Fd(file.file.as_raw_fd());
            let entry = opcode::Read::new(fd, read.into.as_mut_ptr(), len)
                .offset(read.offset)
                .build()
                .user_data(index as u64);
            // SAFETY: the buffer is borrowed by `reads` and the descriptor held by `files` until
            // this function returns, which is after every entry that was pushed has completed.
            match unsafe { ring.submission().push(&entry) } {
                Ok(()) => waiting += 1,
                Err(_) => read.result = Err(io::ErrorKind::WouldBlock.into()),
            }
        }
        let mut refusals = 0;
        while waiting > 0 {
            // An error here (a signal, a full queue) leaves the entries in place. Their completions
            // are waited for in any case.
            refusals = match ring.submit_and_wait(1) {
                Err(error) if error.kind() != io::ErrorKind::Interrupted => refusals + 1,
                _ => 0,
            };
            if refusals > MOST_REFUSALS {
                lost();
            }
            if refusals > 0 {
                std::thread::yield_now();
            }
            for entry in ring.completion() {
                (waiting, refusals) = (waiting - 1, 0);
                if let Some(read) =
                    usize::try_from(entry.user_data()).ok().and_then(|i| reads.get_mut(i))
                {
                    read.result = match entry.result() {
                        n if n < 0 => Err(io::Error::from_raw_os_error(-n)),
                        n => Ok(n as usize),
                    };
                }
            }
        }
    }
}

impl ShardReader for UringReader {
    fn name(&self) -> &'static str {
        "uring"
    }

    fn read_at(&self, file: u32, offset: u64, into: &mut [u8]) -> io::Result<usize> {
        self.direct.read_at(file, offset, into)
    }

    fn reread_at(&self, file: u32, offset: u64, into: &mut [u8]) -> io::Result<usize> {
        self.direct.reread_at(file, offset, into)
    }

    fn batch(&self) -> usize {
        self.batch
    }

    fn read_batch(&self, reads: &mut [ReadOp<'_>]) {
        let files: io::Result<Vec<_>> =
            reads.iter().map(|read| self.direct.file(read.file)).collect();
        let ring = self.rings.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let ring = match ring {
            Some(ring) => Ok(ring),
            None => Self::ring(self.batch),
        };
        let (Ok(files), Ok(mut ring)) = (files, ring) else { return self.direct.read_batch(reads) };
        if reads.len() > self.batch || files.iter().any(|file| !file.direct) {
            return self.direct.read_batch(reads);
        }
        self.submit(&mut ring, reads, &files);
        self.rings.lock().unwrap_or_else(PoisonError::into_inner).push(ring);
        for read in reads {
            if read.result.as_ref().is_err_and(is_passing) {
                read.result = self.direct.read_at(read.file, read.offset, read.into);
            }
        }
    }
}

/// True if the file system refuses direct reads after all, or a signal came in between.
fn is_passing(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::InvalidInput | io::ErrorKind::Interrupted | io::ErrorKind::WouldBlock
    )
}

/// Ends the process. The kernel may write to the buffers until the reads into them have completed,
/// and a ring that cannot be entered never reports that.
fn lost() -> ! {
    let _ = writeln!(
        io::stderr(),
        "sws: the system stopped serving io_uring while reads were under way; start again with --reader direct"
    );
    std::process::abort()
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;
    use std::process::Command;

    use super::*;
    use sws_format::ModelIdentity;

    const CHILD: &str = "SWS_TEST_LOSES_ITS_RING";

    /// The process must end without returning to the owner of the buffers, so a parent process
    /// observes it.
    #[test]
    fn lost_ring_ends_the_process_with_a_message() {
        if std::env::var_os(CHILD).is_some() {
            return lose_a_ring();
        }
        let this = "reader::uring::tests::lost_ring_ends_the_process_with_a_message";
        let mut child = Command::new("timeout");
        child.args(["-k", "1", "60"]).arg(std::env::current_exe().unwrap());
        let output = child.args(["--exact", this, "--nocapture"]).env(CHILD, "1").output().unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr);
        if stderr.contains("no io_uring here") {
            return;
        }
        // `timeout` ends as its command did: by SIGABRT, or with the exit code that a shell makes
        // of it.
        let aborted = output.status.signal() == Some(6) || output.status.code() == Some(134);
        assert!(aborted, "{output:?}");
        assert!(stderr.contains("sws: the system stopped serving io_uring"), "{stderr}");
    }

    fn lose_a_ring() {
        let model = ModelIdentity { model_type: "test".into(), fingerprint: "00".into() };
        let manifest = Manifest {
            model,
            encoding: None,
            files: Vec::new(),
            pieces: Vec::new(),
            copies: Vec::new(),
        };
        let Ok(reader) = UringReader::new(&manifest, Path::new("/"), 2) else {
            return drop(writeln!(io::stderr(), "no io_uring here"));
        };
        let mut ring = reader.rings.lock().unwrap().pop().unwrap();
        // SAFETY: only the ring uses the descriptor afterwards, and the test needs it closed. The
        // process ends before the ring is dropped.
        unsafe { rustix::io::close(ring.as_raw_fd()) };
        let file = std::fs::File::open(std::env::current_exe().unwrap()).unwrap();
        let mut into = [0; 512];
        let result = Ok(0);
        let read = ReadOp { file: 0, offset: 0, into: &mut into, result };
        reader.submit(&mut ring, &mut [read], &[Arc::new(OpenFile { file, direct: false })]);
        unreachable!("the ring is gone");
    }
}
