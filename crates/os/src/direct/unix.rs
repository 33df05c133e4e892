use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

pub(super) fn read_at(file: &File, into: &mut [u8], offset: u64) -> io::Result<usize> {
    FileExt::read_at(file, into, offset)
}

#[cfg(target_os = "linux")]
pub(super) fn open(path: &Path, align: usize) -> io::Result<File> {
    use rustix::fs::{FileType, Mode, OFlags};

    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::DIRECT | OFlags::NONBLOCK;
    let fd = rustix::fs::open(path, flags, Mode::empty())?;
    let kind = FileType::from_raw_mode(rustix::fs::fstat(&fd)?.st_mode);
    if kind != FileType::RegularFile || !suffices(&fd, align) {
        return Err(rustix::io::Errno::INVAL.into());
    }
    // With `O_NONBLOCK`, io_uring fails a read where the file system would have to wait.
    rustix::fs::fcntl_setfl(&fd, OFlags::DIRECT)?;
    Ok(fd.into())
}

/// True if the file system accepts direct reads at an alignment. One that does not report its own
/// (before Linux 6.1) is assumed to accept them, until it refuses a read.
#[cfg(target_os = "linux")]
fn suffices(fd: &std::os::fd::OwnedFd, align: usize) -> bool {
    use rustix::fs::{AtFlags, StatxFlags};

    let Ok(stat) = rustix::fs::statx(fd, c"", AtFlags::EMPTY_PATH, StatxFlags::DIOALIGN) else {
        return true;
    };
    if stat.stx_mask & StatxFlags::DIOALIGN.bits() == 0 {
        return true;
    }
    let usable = |needed: u32| needed > 0 && align.is_multiple_of(needed as usize);
    usable(stat.stx_dio_offset_align) && usable(stat.stx_dio_mem_align)
}

#[cfg(target_os = "linux")]
pub(super) fn create(path: &Path) -> io::Result<File> {
    use std::os::unix::fs::OpenOptionsExt;

    let direct = rustix::fs::OFlags::DIRECT.bits() as i32;
    File::options().write(true).create(true).truncate(true).custom_flags(direct).open(path)
}

/// Pages that the cache holds already are still used.
#[cfg(not(target_os = "linux"))]
pub(super) fn open(path: &Path, _: usize) -> io::Result<File> {
    let file = crate::open::open_regular(path)?;
    rustix::fs::fcntl_nocache(&file, true)?;
    Ok(file)
}

#[cfg(not(target_os = "linux"))]
pub(super) fn create(path: &Path) -> io::Result<File> {
    let file = File::options().write(true).create(true).truncate(true).open(path)?;
    rustix::fs::fcntl_nocache(&file, true)?;
    Ok(file)
}
