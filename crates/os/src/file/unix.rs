use std::fs::{File, FileType, Metadata};
use std::io;
#[cfg(target_os = "linux")]
use std::num::NonZeroU64;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::time::SystemTime;

use rustix::fs::{AtFlags, CWD, Timespec, Timestamps, UTIME_NOW, UTIME_OMIT};
use rustix::io::Errno;

pub(super) fn read_at(file: &File, into: &mut [u8], offset: u64) -> io::Result<usize> {
    FileExt::read_at(file, into, offset)
}

pub(super) fn replace(from: &Path, to: &Path) -> io::Result<()> {
    std::fs::rename(from, to)
}

pub(super) fn is_link_to_dir(_: &FileType) -> bool {
    false
}

pub(super) fn write_at(file: &File, bytes: &[u8], offset: u64) -> io::Result<usize> {
    FileExt::write_at(file, bytes, offset)
}

#[cfg(target_os = "linux")]
pub(super) fn forget(file: &File, offset: u64, len: Option<u64>) {
    let advice = rustix::fs::Advice::DontNeed;
    let _ = rustix::fs::fadvise(file, offset, len.and_then(NonZeroU64::new), advice);
}

#[cfg(target_os = "linux")]
pub(super) fn read_at_random(file: &File) {
    let _ = rustix::fs::fadvise(file, 0, None::<NonZeroU64>, rustix::fs::Advice::Random);
}

#[cfg(target_os = "linux")]
pub(super) fn allocate(file: &File, len: u64) -> io::Result<()> {
    Ok(rustix::fs::fallocate(file, rustix::fs::FallocateFlags::empty(), 0, len)?)
}

#[cfg(target_os = "linux")]
pub(super) fn punch(file: &File, offset: u64, len: u64) -> io::Result<()> {
    use rustix::fs::FallocateFlags;

    let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    Ok(rustix::fs::fallocate(file, hole, offset, len)?)
}

/// The unified cache is not charged to a process, and takes no advice to drop pages.
#[cfg(not(target_os = "linux"))]
pub(super) fn forget(_: &File, _: u64, _: Option<u64>) {}

#[cfg(not(target_os = "linux"))]
pub(super) fn read_at_random(_: &File) {}

#[cfg(not(target_os = "linux"))]
pub(super) fn allocate(_: &File, _: u64) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}

#[cfg(not(target_os = "linux"))]
pub(super) fn punch(_: &File, _: u64, _: u64) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}

pub(super) fn make_sparse(_: &File) -> io::Result<()> {
    Ok(())
}

pub(super) fn allocated(_: &Path, about: &Metadata) -> u64 {
    about.blocks() * 512
}

fn now() -> Timespec {
    Timespec { tv_sec: 0, tv_nsec: UTIME_NOW }
}

pub(super) fn touch(file: &File) -> io::Result<()> {
    let times = Timestamps { last_access: now(), last_modification: now() };
    Ok(rustix::fs::futimens(file, &times)?)
}

pub(super) fn set_modified(path: &Path, time: Option<SystemTime>) -> io::Result<()> {
    let last_modification = match time {
        Some(time) => {
            let since = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
            Timespec { tv_sec: since.as_secs() as i64, tv_nsec: since.subsec_nanos().into() }
        }
        None => now(),
    };
    let last_access = Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT };
    let times = Timestamps { last_access, last_modification };
    Ok(rustix::fs::utimensat(CWD, path, &times, AtFlags::SYMLINK_NOFOLLOW)?)
}

pub(super) fn sync_dir(dir: &Path) -> io::Result<()> {
    File::open(dir)?.sync_all()
}

pub(super) fn is_damage(error: &io::Error) -> bool {
    Errno::from_io_error(error).is_none_or(|number| number == Errno::IO)
}
