use std::ffi::OsStr;
use std::io;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use super::ProcessMemoryUse;

#[cfg(not(target_os = "macos"))]
pub(super) fn memory() -> ProcessMemoryUse {
    let Ok(status) = std::fs::read_to_string("/proc/self/status") else {
        return ProcessMemoryUse::default();
    };
    ProcessMemoryUse {
        resident: bytes(&status, "VmRSS:"),
        peak: bytes(&status, "VmHWM:"),
        anonymous: bytes(&status, "RssAnon:"),
        page_tables: bytes(&status, "VmPTE:"),
        threads: field(&status, "Threads:").and_then(|number| number.parse().ok()),
    }
}

/// The bytes of a line like `Name:   123 kB`.
#[cfg(not(target_os = "macos"))]
fn bytes(status: &str, name: &str) -> Option<u64> {
    let kib: u64 = field(status, name)?.strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1024)
}

#[cfg(not(target_os = "macos"))]
fn field<'s>(status: &'s str, name: &str) -> Option<&'s str> {
    status.lines().find_map(|line| line.strip_prefix(name)).map(str::trim)
}

#[cfg(target_os = "macos")]
pub(super) fn memory() -> ProcessMemoryUse {
    crate::macos::memory()
}

/// Length of all read-only mappings of files.
pub(super) fn mapped_files() -> u64 {
    read_only_mappings(Path::new("/proc/self/maps"))
}

fn read_only_mappings(maps: &Path) -> u64 {
    let maps = std::fs::read_to_string(maps).unwrap_or_default();
    let lens = maps.lines().filter_map(|line| {
        // 7f00-7f20 r-xp 00000000 fe:00 1234 /usr/lib/libc.so.6
        let mut words = line.split_ascii_whitespace();
        let range = words.next()?;
        let rights = words.next()?;
        let path = words.nth(3)?;
        let (start, end) = range.split_once('-')?;
        let address = |word| u64::from_str_radix(word, 16).ok();
        (path.starts_with('/') && !rights.contains('w'))
            .then_some(address(end)?.checked_sub(address(start)?)?)
    });
    lens.sum()
}

pub(super) fn exit_now(code: i32) -> ! {
    signal_hook::low_level::exit(code)
}

pub(super) fn become_program(command: &mut Command) -> io::Error {
    command.exec()
}

#[cfg(target_os = "linux")]
pub(super) fn notify_manager(address: &OsStr, message: &[u8]) -> io::Result<()> {
    use std::os::linux::net::SocketAddrExt;
    use std::os::unix::net::{SocketAddr, UnixDatagram};

    let address = match address.as_encoded_bytes() {
        [b'@', name @ ..] => SocketAddr::from_abstract_name(name),
        _ => SocketAddr::from_pathname(address),
    }?;
    UnixDatagram::unbound()?.send_to_addr(message, &address).map(drop)
}

#[cfg(not(target_os = "linux"))]
pub(super) fn notify_manager(_: &OsStr, _: &[u8]) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_read_only_file_mappings_are_counted() {
        let maps = "\
00400000-00500000 r-xp 00000000 fe:00 12 /usr/bin/a
00500000-00600000 rw-p 00100000 fe:00 12 /usr/bin/a
7f000000-7f001000 r--p 00000000 fe:00 13 /usr/lib/a name.so
7f001000-7f003000 rw-p 00000000 00:00 0
7f003000-7f004000 r-xp 00000000 00:00 0 [vdso]
broken
";
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), maps).unwrap();
        assert_eq!(read_only_mappings(file.path()), (1 << 20) + 4096);
        assert_eq!(read_only_mappings(Path::new("/nowhere")), 0);
    }
}
